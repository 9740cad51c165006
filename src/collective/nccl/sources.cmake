# The schedule on NCCL: for libonebit-cuda.so, and for tests without a GPU.
set(onebit_collective_nccl_sources admission.cc device_codec.cc nccl_communicator.cc residual_slots.cc run.cc)
list(TRANSFORM onebit_collective_nccl_sources PREPEND "${CMAKE_CURRENT_LIST_DIR}/")
