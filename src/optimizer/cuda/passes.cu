// The passes on a GPU: one kernel a pass, over the blocks of all tensors of a launch.
//
// A warp takes a block of kBlock elements. Thread t has lanes t and t + 32 of the kLanes that passes.h sums
// by: row r of a block gives it elements 64 r + t and 64 r + 32 + t, so each access of a warp is one
// stretch, whatever the alignment. kRows rows are read before any of them is written. Nothing waits for
// another block of threads.
#include <algorithm>
#include <array>
#include <utility>

#include "codec/cuda/batches.cuh"
#include "optimizer/cuda/element.cuh"
#include "optimizer/cuda/kernels.h"

namespace onebit::optimizer::cuda {

using codec::cuda::Batch;
using codec::cuda::kAllLanes;
using codec::cuda::kThreads;
using codec::cuda::kWarp;
using codec::cuda::kWarps;

constexpr unsigned kRows = 4;  ///< that a thread holds at once
constexpr unsigned kHeld = kRows * kLanes / kWarp;
template <Pass kPass>
constexpr Touched kTouched = touched(kPass);
static_assert(kLanes == 2 * kWarp && kBlock % (kHeld * kWarp) == 0);

__device__ __forceinline__ float load_gradient(const PassPiece& piece, std::size_t i) {
  if (piece.gradient == nullptr) return 0;
  if (piece.gradient_mask != nullptr && piece.gradient_mask[i] == 0) return 0;
  switch (piece.gradient_type) {
    case DataType::kFloat16:
      return codec::cuda::widen(static_cast<const __half*>(piece.gradient)[i]);
    case DataType::kBFloat16:
      return codec::cuda::widen(static_cast<const __nv_bfloat16*>(piece.gradient)[i]);
    default:
      return static_cast<const float*>(piece.gradient)[i];
  }
}

template <unsigned kBits>
__device__ __forceinline__ Element load(const PassPiece& piece, std::size_t i) {
  const Arrays& from = piece.arrays;
  Element e;
  if constexpr ((kBits & kG) != 0) e.g = load_gradient(piece, i);
  if constexpr ((kBits & kX) != 0) e.x = from.x[i];
  if constexpr ((kBits & kM) != 0) e.m = from.m[i];
  if constexpr ((kBits & kV) != 0) e.v = from.v[i];
  if constexpr ((kBits & kF) != 0) e.f = from.f[i];
  if constexpr ((kBits & kW) != 0) e.w = from.w[i];
  if constexpr ((kBits & kZ) != 0) e.z = from.z[i];
  if constexpr ((kBits & kC) != 0) e.c = from.c[i];
  return e;
}

template <unsigned kBits>
__device__ __forceinline__ void store(const PassPiece& piece, std::size_t i, const Element& e) {
  const Arrays& to = piece.arrays;
  if constexpr ((kBits & kX) != 0) to.x[i] = e.x;
  if constexpr ((kBits & kM) != 0) to.m[i] = e.m;
  if constexpr ((kBits & kV) != 0) to.v[i] = e.v;
  if constexpr ((kBits & kF) != 0) to.f[i] = e.f;
  if constexpr ((kBits & kW) != 0) to.w[i] = e.w;
  if constexpr ((kBits & kZ) != 0) to.z[i] = e.z;
  if constexpr ((kBits & kC) != 0) to.c[i] = e.c;
  if constexpr ((kBits & kW) != 0) {
    if (piece.narrow_parameters == nullptr) return;
    if (piece.narrow_type == DataType::kFloat16) {
      static_cast<__half*>(piece.narrow_parameters)[i] = codec::cuda::narrow<__half>(e.w);
    } else {
      static_cast<__nv_bfloat16*>(piece.narrow_parameters)[i] = codec::cuda::narrow<__nv_bfloat16>(e.w);
    }
  }
}

/// A thread's part of a block's numbers.
struct Lanes {
  float first[2] = {};
  float second[2] = {};
  int largest = 0;  ///< bits: those of terms from 0 are ordered as they are, NaN above all

  __device__ void enter(unsigned lane, const Terms& terms) {
    first[lane] = add(first[lane], terms.first);
    second[lane] = add(second[lane], terms.second);
    largest = max(largest, __float_as_int(terms.largest));
  }
  /// All threads of a warp together.
  __device__ Partial fold() const {
    float a = add(first[0], first[1]);
    float b = add(second[0], second[1]);
    int c = largest;
#pragma unroll
    for (unsigned half = kWarp / 2; half >= 1; half /= 2) {
      a = add(a, __shfl_xor_sync(kAllLanes, a, half));
      b = add(b, __shfl_xor_sync(kAllLanes, b, half));
      c = max(c, __shfl_xor_sync(kAllLanes, c, half));
    }
    return {a, b, __int_as_float(c)};
  }
};

template <Pass kPass>
__global__ void __launch_bounds__(kThreads, 2) pass_kernel(const __grid_constant__ Batch<PassPiece> batch) {
  const std::uint32_t units = batch.first_unit[batch.count];
  const unsigned thread = threadIdx.x % kWarp;
  unsigned from = 0;
  for (std::uint32_t number = blockIdx.x * kWarps + threadIdx.x / kWarp; number < units;
       number += gridDim.x * kWarps) {
    const codec::cuda::Unit unit = codec::cuda::find_unit(batch, number, from);
    from = unit.piece;
    const PassPiece& piece = batch.pieces[unit.piece];
    Scalars scalars = piece.scalars;
    if (piece.step != nullptr) scalars.step = *piece.step;
    Lanes lanes;
    for (unsigned row = 0; row * kLanes < unit.count; row += kRows) {
      Element elements[kHeld];
#pragma unroll
      for (unsigned k = 0; k < kHeld; ++k) {
        const unsigned i = row * kLanes + k * kWarp + thread;
        if (i < unit.count) elements[k] = load<kTouched<kPass>.reads>(piece, unit.first + i);
      }
#pragma unroll
      for (unsigned k = 0; k < kHeld; ++k) {
        const unsigned i = row * kLanes + k * kWarp + thread;
        if (i >= unit.count) continue;
        Element& e = elements[k];
        const bool live = !piece.masked || e.v > 0.0f;
        lanes.enter(k % 2, take<kPass>(scalars, e, live));
        store<kTouched<kPass>.writes>(piece, unit.first + i, e);
        if constexpr (kTouched<kPass>.writes_masked != 0) {
          if (piece.masked) store<kTouched<kPass>.writes_masked>(piece, unit.first + i, e);
        }
      }
    }
    const Partial partial = lanes.fold();
    if (thread == 0) piece.partials[unit.index] = partial;
  }
}

/// A tensor a block of kLanes threads: thread l adds lane l.
__global__ void __launch_bounds__(kLanes)
    add_up_kernel(const Partial* partials, const std::size_t* first_block, JobResult* results) {
  __shared__ double first[kLanes];
  __shared__ double second[kLanes];
  __shared__ unsigned largest[kLanes];
  const unsigned lane = threadIdx.x;
  double own_first = 0, own_second = 0;
  unsigned own_largest = 0;
  for (std::size_t block = first_block[blockIdx.x] + lane; block < first_block[blockIdx.x + 1];
       block += kLanes) {
    own_first = __dadd_rn(own_first, static_cast<double>(partials[block].first));
    own_second = __dadd_rn(own_second, static_cast<double>(partials[block].second));
    own_largest = max(own_largest, __float_as_uint(partials[block].largest));
  }
  first[lane] = own_first;
  second[lane] = own_second;
  largest[lane] = own_largest;
  for (unsigned half = kLanes / 2; half >= 1; half /= 2) {
    __syncthreads();
    if (lane < half) {
      first[lane] = __dadd_rn(first[lane], first[lane + half]);
      second[lane] = __dadd_rn(second[lane], second[lane + half]);
      largest[lane] = max(largest[lane], largest[lane + half]);
    }
  }
  if (lane == 0) results[blockIdx.x] = {first[0], second[0], __uint_as_float(largest[0])};
}

/// One block of threads: all fetch the results, the first enters them in their order.
__global__ void __launch_bounds__(kThreads)
    bring_together_kernel(const JobResult* results, std::size_t tensors, double word, Agreement* agreement) {
  __shared__ double first[kThreads];
  __shared__ float largest[kThreads];
  Agreement own;
  for (std::size_t begin = 0; begin < tensors; begin += kThreads) {
    const std::size_t mine = begin + threadIdx.x;
    if (mine < tensors) {
      first[threadIdx.x] = results[mine].first;
      largest[threadIdx.x] = results[mine].largest;
    }
    __syncthreads();
    for (unsigned i = 0; threadIdx.x == 0 && i < kThreads && begin + i < tensors; ++i) {
      enter(own, {first[i], 0, largest[i]});
    }
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  close(own);
  own.word = word;
  *agreement = own;
}

__global__ void __launch_bounds__(kThreads) scale_kernel(float* data, std::size_t count, float factor) {
  const std::size_t step = std::size_t{gridDim.x} * kThreads;
  for (std::size_t i = std::size_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    data[i] = __fmul_rn(data[i], factor);
  }
}

/// As many rules as a kernel's parameters hold.
struct RuleBatch {
  static constexpr unsigned kMost = 32;
  unsigned count;
  LambRule rules[kMost];
};

/// A thread a tensor.
__global__ void choose_steps_kernel(const __grid_constant__ RuleBatch batch, const JobResult* results,
                                    LambNumbers* numbers, float* steps) {
  const unsigned i = threadIdx.x;
  if (i < batch.count) steps[i] = choose_step(batch.rules[i], results[i], numbers[i]);
}

namespace {

template <Pass kPass>
cudaError_t launch_pass(std::span<const PassPiece> pieces, cudaStream_t stream) {
  constexpr auto kKernel = pass_kernel<kPass>;
  return codec::cuda::for_batches<kKernel>(pieces, kBlock, kWarps, [&](const auto& batch, dim3 grid) {
    return cu::launch(kKernel, grid, dim3(kThreads), 0, stream, batch);
  });
}

}  // namespace

cudaError_t run_pass(Pass pass, std::span<const PassPiece> pieces, cudaStream_t stream) {
  using Launch = cudaError_t (*)(std::span<const PassPiece> pieces, cudaStream_t stream);
  constexpr auto kLaunches = []<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    return std::array<Launch, kPasses>{launch_pass<static_cast<Pass>(kIndex)>...};
  }
  (std::make_index_sequence<kPasses>());
  return kLaunches[static_cast<std::size_t>(pass)](pieces, stream);
}

cudaError_t add_up(const Partial* partials, const std::size_t* first_block, std::size_t tensors,
                   JobResult* results, cudaStream_t stream) {
  if (tensors == 0) return cudaSuccess;
  return cu::launch(add_up_kernel, dim3(static_cast<unsigned>(tensors)), dim3(kLanes), 0, stream, partials,
                    first_block, results);
}

cudaError_t bring_together(const JobResult* results, std::size_t tensors, double word, Agreement* own,
                           cudaStream_t stream) {
  return cu::launch(bring_together_kernel, dim3(1), dim3(kThreads), 0, stream, results, tensors, word, own);
}

cudaError_t scale(float* data, std::size_t count, float factor, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  unsigned blocks = 0;
  const cudaError_t error = codec::cuda::resident_blocks<scale_kernel>(&blocks);
  if (error != cudaSuccess) return error;
  const std::size_t needed = (count + kThreads - 1) / kThreads;
  const auto grid = static_cast<unsigned>(std::min<std::size_t>(blocks, needed));
  return cu::launch(scale_kernel, dim3(grid), dim3(kThreads), 0, stream, data, count, factor);
}

cudaError_t choose_steps(std::span<const LambRule> rules, const JobResult* results, LambNumbers* numbers,
                         float* steps, cudaStream_t stream) {
  for (std::size_t begin = 0; begin < rules.size(); begin += RuleBatch::kMost) {
    RuleBatch batch;
    batch.count = static_cast<unsigned>(std::min<std::size_t>(RuleBatch::kMost, rules.size() - begin));
    std::copy_n(rules.begin() + static_cast<std::ptrdiff_t>(begin), batch.count, batch.rules);
    const cudaError_t error = cu::launch(choose_steps_kernel, dim3(1), dim3(RuleBatch::kMost), 0, stream,
                                         batch, results + begin, numbers + begin, steps + begin);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

ONEBIT_CUDA_KERNEL(pass_kernel<Pass::kCheck>)
ONEBIT_CUDA_KERNEL(pass_kernel<Pass::kGather>)
ONEBIT_CUDA_KERNEL(pass_kernel<Pass::kMomentum>)
ONEBIT_CUDA_KERNEL(pass_kernel<Pass::kAdam>)
ONEBIT_CUDA_KERNEL(pass_kernel<Pass::kAdamKeepingVariance>)
ONEBIT_CUDA_KERNEL(pass_kernel<Pass::kLambNorms>)
ONEBIT_CUDA_KERNEL(pass_kernel<Pass::kApply>)
ONEBIT_CUDA_KERNEL(pass_kernel<Pass::kLambFrozen>)
ONEBIT_CUDA_KERNEL(pass_kernel<Pass::kLocal>)
ONEBIT_CUDA_KERNEL(pass_kernel<Pass::kSyncPrepare>)
ONEBIT_CUDA_KERNEL(pass_kernel<Pass::kSyncFinish>)
ONEBIT_CUDA_KERNEL(pass_kernel<Pass::kSyncFinishSubtracting>)
ONEBIT_CUDA_KERNEL(pass_kernel<Pass::kExchangedNorm>)
ONEBIT_CUDA_KERNEL(pass_kernel<Pass::kNorms>)
ONEBIT_CUDA_KERNEL(pass_kernel<Pass::kVarianceNorm>)
ONEBIT_CUDA_KERNEL(pass_kernel<Pass::kCorrect>)
ONEBIT_CUDA_KERNEL(add_up_kernel)
ONEBIT_CUDA_KERNEL(bring_together_kernel)
ONEBIT_CUDA_KERNEL(scale_kernel)
ONEBIT_CUDA_KERNEL(choose_steps_kernel)

}  // namespace onebit::optimizer::cuda
