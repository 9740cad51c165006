// The kernels for fp16 tensors.
#include "codec/cuda/tensor_kernels.cuh"

namespace onebit::codec::cuda {

template struct TensorKernels<DataType::kFloat16>;
ONEBIT_TENSOR_KERNELS(__half)

}  // namespace onebit::codec::cuda
