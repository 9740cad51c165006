// The sanitizers' hooks, which exist when the program carries their run-time library and are null otherwise.
//
// The stand-in itself is never instrumented, so that the thread sanitizer sees no edges but those that CUDA
// promises and which are stated through these. Thus one build serves plain and sanitized programs.
#pragma once

#include <cstddef>

extern "C" {
__attribute__((weak)) void* __tsan_create_fiber(unsigned flags);
__attribute__((weak)) void __tsan_destroy_fiber(void* fiber);
__attribute__((weak)) void* __tsan_get_current_fiber();
__attribute__((weak)) void __tsan_switch_to_fiber(void* fiber, unsigned flags);
__attribute__((weak)) void __tsan_set_fiber_name(void* fiber, const char* name);
__attribute__((weak)) void __tsan_acquire(void* address);
__attribute__((weak)) void __tsan_release(void* address);
__attribute__((weak)) void AnnotateIgnoreWritesBegin(const char* file, int line);
__attribute__((weak)) void AnnotateIgnoreWritesEnd(const char* file, int line);
__attribute__((weak)) void __sanitizer_start_switch_fiber(void** save, const void* bottom, std::size_t size);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void* saved, const void** bottom,
                                                           std::size_t* size);
}

namespace onebit::cuda_cpu {

/// What is done before release(address) is seen by whoever calls acquire(address) later.
inline void release(void* address) {
  if (__tsan_release != nullptr) __tsan_release(address);
}
inline void acquire(void* address) {
  if (__tsan_acquire != nullptr) __tsan_acquire(address);
}
/// While one exists, the thread sanitizer takes no note of what the calling thread allocates, frees, reads
/// and writes: for the stand-in's own objects, which its locks protect without the sanitizer's knowledge.
/// Acquire and release still count.
class Unobserved {
 public:
  Unobserved() {
    if (AnnotateIgnoreWritesBegin != nullptr) AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unobserved() {
    if (AnnotateIgnoreWritesEnd != nullptr) AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  }
  Unobserved(const Unobserved&) = delete;
  Unobserved& operator=(const Unobserved&) = delete;
};

inline bool under_thread_sanitizer() {
  return __tsan_create_fiber != nullptr;
}
inline bool under_any_sanitizer() {
  return under_thread_sanitizer() || __sanitizer_start_switch_fiber != nullptr;
}

}  // namespace onebit::cuda_cpu
