// The kernels for fp32 tensors.
#include "codec/cuda/tensor_kernels.cuh"

namespace onebit::codec::cuda {

template struct TensorKernels<DataType::kFloat32>;

}  // namespace onebit::codec::cuda
