// Runs a kernel on the engine alone, without streams: the call returns when the grid has ended.
#pragma once

#include <cstddef>

#include "cuda_cpu/engine/grid.h"

namespace onebit::cuda_cpu {

struct Shape {
  dim3 blocks{1};
  dim3 threads{1};
  std::size_t shared_bytes = 0;
};

template <typename... Parameters, typename... Arguments>
void run_on_engine(const EngineOptions& options, void (*kernel)(Parameters...), const Shape& shape,
                   Arguments... arguments) {
  [&](Parameters... values) {
    void* addresses[sizeof...(Parameters) + 1] = {&values...};
    run_grid({signature_of(kernel), reinterpret_cast<const void*>(kernel), addresses, shape.blocks,
              shape.threads, shape.shared_bytes, "under test"},
             options);
  }(static_cast<Parameters>(arguments)...);
}

}  // namespace onebit::cuda_cpu
