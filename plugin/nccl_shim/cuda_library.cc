#include "cuda_library.h"

#include <dlfcn.h>

#include <mutex>

namespace onebit::shim {
namespace {

constexpr const char* kName = "libonebit-cuda.so";

std::string beside_this_library() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&cuda_library), &info) == 0) return kName;
  const std::string own = info.dli_fname;
  const auto slash = own.rfind('/');
  return slash == std::string::npos ? kName : own.substr(0, slash + 1) + kName;
}

Result<const cuda::Library*> open(const std::string& path) {
  const auto refused = [&](const char* why) {
    return Status::error(Code::kSystemError, "{}: {}; set ONEBIT_CUDA_LIBRARY to its path", path, why);
  };
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return refused(dlerror());
  const auto entry = reinterpret_cast<const cuda::Library* (*)()>(dlsym(handle, cuda::kLibrarySymbol));
  if (entry == nullptr) return refused("it is another library");
  const cuda::Library* const library = entry();
  if (library->version != cuda::kLibraryVersion) return refused("it is of another version of onebit");
  return library;
}

}  // namespace

Result<const cuda::Library*> cuda_library(const std::string& path) {
  static std::mutex mutex;
  static const cuda::Library* opened = nullptr;
  const std::lock_guard lock(mutex);
  if (opened == nullptr) {
    ONEBIT_ASSIGN_OR_RETURN(opened, open(path.empty() ? beside_this_library() : path));
  }
  return opened;
}

}  // namespace onebit::shim
