// How the stand-in calls a kernel whose type it does not know: a thunk made from the kernel's signature,
// registered under the kernel's address before its first launch, or by ONEBIT_CUDA_KERNEL when the program
// starts.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

namespace onebit::cuda_cpu {

/// The signature of a kernel, as the engine and the runtime need it.
struct KernelSignature {
  /// Calls `kernel` with the arguments that `arguments` points at.
  void (*call)(const void* kernel, void* const* arguments);
  unsigned argument_count;
  const std::size_t* argument_sizes;  ///< bytes
};

}  // namespace onebit::cuda_cpu

/// Made known to the run-time stand-in. Any thread; the same kernel any number of times.
extern "C" void onebit_cuda_cpu_register_kernel(const void* kernel,
                                                const onebit::cuda_cpu::KernelSignature* signature);

namespace onebit::cuda_cpu {

template <typename... Parameters>
class SignatureOf {
  static_assert((std::is_trivially_copyable_v<Parameters> && ...), "kernel arguments are copied as bytes");

  template <std::size_t... kIndex>
  static void call_with(const void* kernel, [[maybe_unused]] void* const* arguments,
                        std::index_sequence<kIndex...>) {
    reinterpret_cast<void (*)(Parameters...)>(const_cast<void*>(kernel))(
        *static_cast<std::remove_reference_t<Parameters>*>(arguments[kIndex])...);
  }
  static void call(const void* kernel, void* const* arguments) {
    call_with(kernel, arguments, std::index_sequence_for<Parameters...>());
  }
  static constexpr std::size_t kSizes[sizeof...(Parameters) + 1] = {sizeof(Parameters)..., 0};

 public:
  static constexpr KernelSignature kSignature{&call, sizeof...(Parameters), kSizes};
};

template <typename... Parameters>
const KernelSignature* signature_of(void (*)(Parameters...)) {
  return &SignatureOf<Parameters...>::kSignature;
}
template <typename... Parameters>
void register_kernel(void (*kernel)(Parameters...)) {
  onebit_cuda_cpu_register_kernel(reinterpret_cast<const void*>(kernel), signature_of(kernel));
}

struct KernelRegistration {
  template <typename... Parameters>
  explicit KernelRegistration(void (*kernel)(Parameters...)) {
    register_kernel(kernel);
  }
};

}  // namespace onebit::cuda_cpu

#define ONEBIT_CUDA_CPU_JOIN_INNER(a, b) a##b
#define ONEBIT_CUDA_CPU_JOIN(a, b) ONEBIT_CUDA_CPU_JOIN_INNER(a, b)
/// See cuda/launch.h.
#define ONEBIT_CUDA_KERNEL(...)                                                              \
  [[maybe_unused]] static const ::onebit::cuda_cpu::KernelRegistration ONEBIT_CUDA_CPU_JOIN( \
      onebit_cuda_cpu_kernel_, __COUNTER__){&__VA_ARGS__};
