// From Status to onebitResult_t: the message is kept for onebitGetLastError, and no exception leaves the
// library.
//
// Threads: the last message is a thread's own.
#pragma once

#include <onebit/onebit.h>

#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "base/status.h"

namespace onebit::api {

/// This thread's last failure.
std::string& last_error() noexcept;

/// The code of `status`, its message kept if it is an error.
onebitResult_t report(const Status& status) noexcept;

/// Runs `body` (a function that gives a Status) and reports what it came to.
template <typename Body>
onebitResult_t guarded(Body&& body) noexcept {
  try {
    return report(body());
  } catch (const std::bad_alloc&) {
    return report(Status(Code::kSystemError, "out of memory"));
  } catch (const std::exception& error) {
    return report(Status(Code::kInternalError, error.what()));
  }
}

/// The number behind an enumerator of the C API. A caller may have passed any; to read it as its enumeration
/// would be undefined.
template <typename E>
int number_of(const E& value) {
  static_assert(sizeof(E) == sizeof(int));
  int number = 0;
  std::memcpy(&number, &value, sizeof number);
  return number;
}

/// kInvalidArgument "NAME must not be NULL" for a null pointer.
inline Status not_null(const void* pointer, const char* name) {
  if (pointer != nullptr) return Status();
  return Status::error(Code::kInvalidArgument, "{} must not be NULL", name);
}

}  // namespace onebit::api
