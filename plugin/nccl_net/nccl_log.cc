#include "nccl_net/nccl_log.h"

#include <atomic>
#include <string_view>

#include "base/log.h"

namespace onebit::nccl_net {
namespace {

std::atomic<abi::Logger> g_logger{nullptr};

void pass_on(LogLevel level, std::string_view text) noexcept {
  const abi::Logger logger = g_logger.load(std::memory_order_acquire);
  if (logger == nullptr) return;
  const int nccl_level = level == LogLevel::kWarn   ? abi::kLogWarn
                         : level == LogLevel::kInfo ? abi::kLogInfo
                                                    : abi::kLogTrace;
  logger(nccl_level, abi::kSubsystemInit | abi::kSubsystemNet, "onebit", 0, "NET/onebit: %.*s",
         static_cast<int>(text.size()), text.data());
}

abi::Result result_of(Code code) noexcept {
  switch (code) {
    case Code::kOk:
      return abi::Result::kSuccess;
    case Code::kSystemError:
      return abi::Result::kSystemError;
    case Code::kInternalError:
      return abi::Result::kInternalError;
    case Code::kInvalidArgument:
      return abi::Result::kInvalidArgument;
    case Code::kInvalidUsage:
      return abi::Result::kInvalidUsage;
    case Code::kRemoteError:
    case Code::kTimeout:  // of a peer that says nothing
    case Code::kAborted:
    case Code::kDataError:  // of a peer that speaks otherwise
      return abi::Result::kRemoteError;
  }
  return abi::Result::kInternalError;
}

}  // namespace

void log_to(abi::Logger logger) noexcept {
  g_logger.store(logger, std::memory_order_release);
  set_log_sink(logger != nullptr ? &pass_on : nullptr);
}

abi::Result report(const Status& status) noexcept {
  if (!status.ok()) log_line(LogLevel::kWarn, status.message());
  return result_of(status.code());
}

}  // namespace onebit::nccl_net
