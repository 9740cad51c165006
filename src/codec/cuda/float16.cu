// The kernels for fp16 tensors.
#include "codec/cuda/tensor_kernels.cuh"

namespace onebit::codec::cuda {

template struct TensorKernels<DataType::kFloat16>;

}  // namespace onebit::codec::cuda
