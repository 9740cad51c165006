// Status and Result<T>: how every fallible call of onebit reports what went wrong.
//
// A Status is a code and, for errors, a message that says what failed, with whom (rank, address) and what to
// set. Invariant: kOk carries no message. Value types; no thread rules. No exception leaves a library of
// onebit.
#pragma once

#include <cassert>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/format.h"

namespace onebit {

/// The classes of failure. The C API's onebitResult_t has the same numbers.
enum class Code : int {
  kOk = 0,
  kSystemError = 1,      ///< the operating system or the network refused something
  kInternalError = 2,    ///< a fault in onebit itself
  kInvalidArgument = 3,  ///< one call's argument is out of its range
  kInvalidUsage = 4,     ///< the calls or settings do not fit together, on this rank or between ranks
  kRemoteError = 5,      ///< a peer died, closed its connection or reported a failure
  kTimeout = 6,          ///< a deadline passed
  kAborted = 7,          ///< onebitCommAbort was called on this communicator
  kDataError = 8,        ///< a file or a message is truncated, corrupt or of another version
};

/// "remote error" and the like, for messages.
std::string_view code_name(Code code) noexcept;

class [[nodiscard]] Status {
 public:
  Status() noexcept = default;
  Status(Code code, std::string message)
      : error_(code == Code::kOk ? nullptr : std::make_shared<const Error>(code, std::move(message))) {}

  /// An error with a formatted message.
  template <typename... Args>
  static Status error(Code code, fmt::format_string<Args...> format, Args&&... args) {
    return Status(code, formatted(format, std::forward<Args>(args)...));
  }
  /// A kSystemError ending in the text of `errno_value`, as in "bind to 10.0.0.1:80: Permission denied".
  static Status system(int errno_value, std::string_view what);

  bool ok() const noexcept { return error_ == nullptr; }
  explicit operator bool() const noexcept { return ok(); }
  Code code() const noexcept { return ok() ? Code::kOk : error_->code; }
  /// Empty when ok.
  const std::string& message() const noexcept;
  /// The same code with `context` and ": " before the message. No change when ok.
  Status with_context(std::string_view context) const;

 private:
  struct Error {
    Error(Code c, std::string m) : code(c), message(std::move(m)) {}
    Code code;
    std::string message;
  };
  std::shared_ptr<const Error> error_;
};

/// A value, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) { assert(!status_.ok()); }  // NOLINT

  bool ok() const noexcept { return value_.has_value(); }
  explicit operator bool() const noexcept { return ok(); }
  const Status& status() const noexcept { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace onebit

/// Returns from the enclosing function with the Status of `expression` when that is an error.
#define ONEBIT_RETURN_IF_ERROR(expression)                                                           \
  do {                                                                                               \
    if (::onebit::Status onebit_status_ = (expression); !onebit_status_.ok()) return onebit_status_; \
  } while (false)

#define ONEBIT_CONCAT_INNER(a, b) a##b
#define ONEBIT_CONCAT(a, b) ONEBIT_CONCAT_INNER(a, b)
#define ONEBIT_ASSIGN_OR_RETURN_INNER(result, target, expression) \
  auto result = (expression);                                     \
  if (!result.ok()) return result.status();                       \
  target = std::move(*result)
/// `target` = the value of the Result `expression`, or returns its Status.
#define ONEBIT_ASSIGN_OR_RETURN(target, expression) \
  ONEBIT_ASSIGN_OR_RETURN_INNER(ONEBIT_CONCAT(onebit_result_, __LINE__), target, expression)
