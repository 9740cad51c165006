// The CUDA kernels of the passes: launches for host code.
//
// A call allocates nothing and waits for nothing: it puts its launches on `stream`, of the current device.
// Errors are cudaLaunchKernel's. All pointers are device memory, at any alignment of their elements. Any
// thread.
#pragma once

#include <driver_types.h>

#include <span>

#include "optimizer/agreement.h"
#include "optimizer/job.h"
#include "optimizer/lamb_rule.h"

namespace onebit::optimizer::cuda {

/// A tensor in a launch.
struct PassPiece {
  std::size_t elements;
  Arrays arrays;  ///< whole arrays of the tensor; g is not used
  const void* gradient;
  const std::uint8_t* gradient_mask;
  void* narrow_parameters;
  Partial* partials;  ///< one a block of kBlock elements, written
  const float* step;  ///< null, or what stands for scalars.step
  Scalars scalars;
  DataType gradient_type;
  DataType narrow_type;
  bool masked;
};

/// `pass` over all pieces, in as few launches as their number allows. The bits are those of the host's
/// passes.
cudaError_t run_pass(Pass pass, std::span<const PassPiece> pieces, cudaStream_t stream);

/// results[i] = the partials first_block[i] to first_block[i + 1] - 1, added up in the order of the host.
cudaError_t add_up(const Partial* partials, const std::size_t* first_block, std::size_t tensors,
                   JobResult* results, cudaStream_t stream);

/// What this rank brings into the agreement: of the results of `tensors`, with `word`.
cudaError_t bring_together(const JobResult* results, std::size_t tensors, double word, Agreement* own,
                           cudaStream_t stream);

/// data[i] = data[i] * factor.
cudaError_t scale(float* data, std::size_t count, float factor, cudaStream_t stream);

/// steps[i] of choose_step by rules[i], which is host memory and copied into the launch.
cudaError_t choose_steps(std::span<const LambRule> rules, const JobResult* results, LambNumbers* numbers,
                         float* steps, cudaStream_t stream);

}  // namespace onebit::optimizer::cuda
