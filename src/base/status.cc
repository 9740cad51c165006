#include "base/status.h"

#include <cerrno>
#include <system_error>

namespace onebit {

std::string_view code_name(Code code) noexcept {
  switch (code) {
    case Code::kOk:
      return "no error";
    case Code::kSystemError:
      return "system error";
    case Code::kInternalError:
      return "internal error";
    case Code::kInvalidArgument:
      return "invalid argument";
    case Code::kInvalidUsage:
      return "invalid usage";
    case Code::kRemoteError:
      return "remote error";
    case Code::kTimeout:
      return "timeout";
    case Code::kAborted:
      return "aborted";
    case Code::kDataError:
      return "data error";
  }
  return "unknown error";
}

Status Status::system(int errno_value, std::string_view what) {
  const std::string_view remedy =
      errno_value == EMFILE ? " (this process has reached RLIMIT_NOFILE: raise it with ulimit -n)" : "";
  return Status(Code::kSystemError,
                formatted("{}: {}{}", what, std::generic_category().message(errno_value), remedy));
}

const std::string& Status::message() const noexcept {
  static const std::string kEmpty;
  return ok() ? kEmpty : error_->message;
}

Status Status::with_context(std::string_view context) const {
  if (ok()) return *this;
  return Status(error_->code, formatted("{}: {}", context, error_->message));
}

}  // namespace onebit
