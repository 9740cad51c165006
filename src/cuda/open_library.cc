#include "cuda/open_library.h"

#include <dlfcn.h>

#include <mutex>

namespace onebit::cuda {
namespace {

constexpr const char* kName = "libonebit-cuda.so";

std::string beside_this_library() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&open_library), &info) == 0) return kName;
  const std::string own = info.dli_fname;
  const auto slash = own.rfind('/');
  return slash == std::string::npos ? kName : own.substr(0, slash + 1) + kName;
}

Result<const Library*> open(const std::string& path) {
  const auto refused = [&](const char* why) {
    return Status::error(Code::kSystemError, "{}: {}; set ONEBIT_CUDA_LIBRARY to its path", path, why);
  };
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return refused(dlerror());
  const auto entry = reinterpret_cast<const Library* (*)()>(dlsym(handle, kLibrarySymbol));
  if (entry == nullptr) return refused("it is another library");
  const Library* const library = entry();
  if (library->version != kLibraryVersion) return refused("it is of another version of onebit");
  return library;
}

}  // namespace

Result<const Library*> open_library(const std::string& path) {
  static std::mutex mutex;
  static const Library* opened = nullptr;
  const std::lock_guard lock(mutex);
  if (opened == nullptr) {
    ONEBIT_ASSIGN_OR_RETURN(opened, open(path.empty() ? beside_this_library() : path));
  }
  return opened;
}

}  // namespace onebit::cuda
