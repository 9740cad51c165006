// CUDA's memory functions for the CPU: cached and streaming accesses, fences, atomics.
//
// Accesses with a cache hint are plain ones, so a 16-byte access to a misaligned address is caught by the
// undefined behaviour sanitizer. x86 keeps stores in order: no run here shows that a fence is missing.
// Atomics are relaxed. A value converts to the type of its address (common_type_t of one type takes no part
// in deduction).
#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <type_traits>

template <typename T>
T __ldg(const T* address) {
  return *address;
}
template <typename T>
T __ldcs(const T* address) {
  return *address;
}
template <typename T>
T __ldcg(const T* address) {
  return *address;
}
template <typename T>
T __ldca(const T* address) {
  return *address;
}
template <typename T>
T __ldlu(const T* address) {
  return *address;
}
template <typename T>
T __ldcv(const T* address) {
  return *address;
}
template <typename T>
void __stcs(T* address, std::common_type_t<T> value) {
  *address = value;
}
template <typename T>
void __stcg(T* address, std::common_type_t<T> value) {
  *address = value;
}
template <typename T>
void __stwb(T* address, std::common_type_t<T> value) {
  *address = value;
}
template <typename T>
void __stwt(T* address, std::common_type_t<T> value) {
  *address = value;
}

inline void __threadfence() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence_block() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence_system() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __nanosleep(unsigned nanoseconds) {
  std::this_thread::sleep_for(std::chrono::nanoseconds(nanoseconds));
}
[[noreturn]] inline void __trap() {
  std::fputs("cuda_cpu: a kernel called __trap\n", stderr);
  std::abort();
}

namespace onebit::cuda_cpu {

/// Replaces *address by change(*address) in one step; the value before.
template <typename T, typename Change>
T atomic_update(T* address, Change change) {
  T before;
  __atomic_load(address, &before, __ATOMIC_RELAXED);
  T after = change(before);
  while (!__atomic_compare_exchange(address, &before, &after, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    after = change(before);
  }
  return before;
}

}  // namespace onebit::cuda_cpu

template <typename T>
T atomicAdd(T* address, std::common_type_t<T> value) {
  return onebit::cuda_cpu::atomic_update(address, [value](T old) { return static_cast<T>(old + value); });
}
template <typename T>
T atomicMax(T* address, std::common_type_t<T> value) {
  return onebit::cuda_cpu::atomic_update(address, [value](T old) { return old < value ? value : old; });
}
template <typename T>
T atomicMin(T* address, std::common_type_t<T> value) {
  return onebit::cuda_cpu::atomic_update(address, [value](T old) { return value < old ? value : old; });
}
template <typename T>
T atomicOr(T* address, std::common_type_t<T> value) {
  return onebit::cuda_cpu::atomic_update(address, [value](T old) { return static_cast<T>(old | value); });
}
template <typename T>
T atomicAnd(T* address, std::common_type_t<T> value) {
  return onebit::cuda_cpu::atomic_update(address, [value](T old) { return static_cast<T>(old & value); });
}
template <typename T>
T atomicXor(T* address, std::common_type_t<T> value) {
  return onebit::cuda_cpu::atomic_update(address, [value](T old) { return static_cast<T>(old ^ value); });
}
template <typename T>
T atomicExch(T* address, std::common_type_t<T> value) {
  return onebit::cuda_cpu::atomic_update(address, [value](T) { return value; });
}
template <typename T>
T atomicCAS(T* address, std::common_type_t<T> expected, std::common_type_t<T> value) {
  return onebit::cuda_cpu::atomic_update(address, [=](T old) { return old == expected ? value : old; });
}
