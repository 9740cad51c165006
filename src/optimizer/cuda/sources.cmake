# Optimizers on a device: the kernels are compiled by nvcc for libonebit-cuda.so, and by the C++ compiler for tests
# without a GPU.
set(onebit_optimizer_cuda_kernels "${CMAKE_CURRENT_LIST_DIR}/passes.cu")
set(onebit_optimizer_cuda_sources device_side.cc device_side_exchange.cc pass_queue.cc side_table.cc)
list(TRANSFORM onebit_optimizer_cuda_sources PREPEND "${CMAKE_CURRENT_LIST_DIR}/")
