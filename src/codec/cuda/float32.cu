// The kernels for fp32 tensors.
#include "codec/cuda/tensor_kernels.cuh"

namespace onebit::codec::cuda {

template struct TensorKernels<DataType::kFloat32>;
ONEBIT_TENSOR_KERNELS(float)

}  // namespace onebit::codec::cuda
