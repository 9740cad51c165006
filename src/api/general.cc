// The C API: version, errors, settings, tags.

#include <algorithm>
#include <cstring>

#include "api/handle.h"
#include "api/result.h"
#include "api/tags.h"
#include "base/settings.h"

namespace onebit::api {

std::string& last_error() noexcept {
  thread_local std::string text;
  return text;
}

onebitResult_t report(const Status& status) noexcept {
  if (status.ok()) return onebitSuccess;
  try {
    last_error() = status.message();
  } catch (...) {  // no memory for the message: the code still goes out
  }
  return static_cast<onebitResult_t>(status.code());
}

}  // namespace onebit::api

using onebit::Status;
using onebit::api::guarded;
using onebit::api::not_null;

onebitResult_t onebitGetVersion(int* version) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(version, "version"));
    *version = ONEBIT_VERSION;
    return Status();
  });
}

const char* onebitGetErrorString(onebitResult_t result) {
  return onebit::code_name(static_cast<onebit::Code>(onebit::api::number_of(result))).data();
}

const char* onebitGetLastError(onebitComm_t comm) {
  const std::string& of_thread = onebit::api::last_error();
  if (!of_thread.empty() || comm == nullptr) return of_thread.c_str();
  thread_local std::string of_communicator;
  try {
    of_communicator = comm->communicator->usable().message();
  } catch (...) {
    return "out of memory";
  }
  return of_communicator.c_str();
}

onebitResult_t onebitGetSettings(char* text, size_t size, size_t* needed) {
  return guarded([&] {
    ONEBIT_ASSIGN_OR_RETURN(const auto settings, onebit::Settings::from_environment());
    ONEBIT_RETURN_IF_ERROR(onebit::collective::Communicator::check_settings(settings));
    const std::string all = onebit::print_settings(settings);
    if (needed != nullptr) *needed = all.size() + 1;
    if (text != nullptr && size != 0) {
      const std::size_t length = std::min(size - 1, all.size());
      std::memcpy(text, all.data(), length);
      text[length] = '\0';
    }
    return Status();
  });
}

onebitResult_t onebitTagBuffer(const void* base, size_t bytes, const char* tag) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(base, "base"));
    ONEBIT_RETURN_IF_ERROR(not_null(tag, "tag"));
    return onebit::api::tag_buffer(base, bytes, tag);
  });
}

onebitResult_t onebitUntagBuffer(const void* base) {
  return guarded([&] { return onebit::api::untag_buffer(base); });
}

onebitResult_t onebitScopeBegin(const char* tag) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(tag, "tag"));
    return onebit::api::begin_scope(tag);
  });
}

onebitResult_t onebitScopeEnd(void) {
  return guarded([&] { return onebit::api::end_scope(); });
}
