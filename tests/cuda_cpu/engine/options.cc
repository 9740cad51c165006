#include "cuda_cpu/engine/options.h"

#include <charconv>
#include <climits>
#include <cstdio>
#include <cstdlib>

namespace onebit::cuda_cpu {
namespace {

[[noreturn]] void refuse(const char* name, std::string_view value, const char* accepted) {
  std::fprintf(stderr, "cuda_cpu: %s='%.*s' is not %s\n", name, static_cast<int>(value.size()), value.data(),
               accepted);
  std::abort();
}
bool parse(std::string_view text, unsigned& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}
std::string_view variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void read_order(EngineOptions& options) {
  constexpr std::string_view kRandom = "random:";
  const std::string_view value = variable("CUDA_CPU_ORDER");
  if (value.empty() || value == "forward") return;
  if (value == "reverse") {
    options.order = Order::kReverse;
  } else if (value.substr(0, kRandom.size()) == kRandom &&
             parse(value.substr(kRandom.size()), options.seed)) {
    options.order = Order::kRandom;
  } else {
    refuse("CUDA_CPU_ORDER", value, "forward, reverse or random:SEED");
  }
}
EngineOptions read_engine_options() {
  EngineOptions options;
  read_order(options);
  options.workers = number_from_environment("CUDA_CPU_WORKERS", 1, 1, 64);
  options.serial_blocks = number_from_environment("CUDA_CPU_SERIAL_BLOCKS", 0, 0, 1) == 1;
  const std::string_view fibers = variable("CUDA_CPU_TSAN_FIBERS");
  if (!fibers.empty() && fibers != "thread" && fibers != "warp") {
    refuse("CUDA_CPU_TSAN_FIBERS", fibers, "thread or warp");
  }
  options.tsan_fiber_per_warp = fibers == "warp";
  return options;
}
RuntimeOptions read_runtime_options() {
  RuntimeOptions options;
  options.devices = static_cast<int>(number_from_environment("CUDA_CPU_DEVICES", 8, 0, 64));
  options.device_memory =
      static_cast<std::size_t>(number_from_environment("CUDA_CPU_DEVICE_MEMORY_MIB", 4096, 0, 1U << 20))
      << 20;
  options.protect = number_from_environment("CUDA_CPU_PROTECT", 0, 0, 1) == 1;
  options.delay_us = number_from_environment("CUDA_CPU_DELAY_US", 0, 0, 1'000'000);
  options.stream_memory_operations =
      number_from_environment("CUDA_CPU_STREAM_MEMORY_OPERATIONS", 1, 0, 1) == 1;
  options.kernels = variable("CUDA_CPU_KERNELS");
  return options;
}

}  // namespace

unsigned number_from_environment(const char* name, unsigned otherwise, unsigned least, unsigned most) {
  const std::string_view value = variable(name);
  if (value.empty()) return otherwise;
  unsigned number = 0;
  if (!parse(value, number) || number < least || number > most) {
    char accepted[64];
    std::snprintf(accepted, sizeof accepted, "a number from %u to %u", least, most);
    refuse(name, value, accepted);
  }
  return number;
}

const EngineOptions& engine_options() {
  static const EngineOptions options = read_engine_options();
  return options;
}
const RuntimeOptions& runtime_options() {
  static const RuntimeOptions options = read_runtime_options();
  return options;
}

}  // namespace onebit::cuda_cpu
