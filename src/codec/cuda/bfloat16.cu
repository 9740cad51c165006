// The kernels for bf16 tensors.
#include "codec/cuda/tensor_kernels.cuh"

namespace onebit::codec::cuda {

template struct TensorKernels<DataType::kBFloat16>;
ONEBIT_TENSOR_KERNELS(__nv_bfloat16)

}  // namespace onebit::codec::cuda
