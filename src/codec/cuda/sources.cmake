# The CUDA sources of the codec: the kernels are compiled by nvcc for libonebit-cuda.so, and by the C++ compiler for tests
# without a GPU.
set(onebit_codec_cuda_kernels average.cu bfloat16.cu float16.cu float32.cu)
list(TRANSFORM onebit_codec_cuda_kernels PREPEND "${CMAKE_CURRENT_LIST_DIR}/")
set(onebit_codec_cuda_sources "${CMAKE_CURRENT_LIST_DIR}/kernels.cc")
