# The schedule on NCCL: for libonebit-cuda.so, and for tests without a GPU.
set(onebit_collective_nccl_sources admission.cc device_codec.cc level_run.cc levels.cc nccl_communicator.cc nccl_wire.cc residual_slots.cc
    running.cc)
list(TRANSFORM onebit_collective_nccl_sources PREPEND "${CMAKE_CURRENT_LIST_DIR}/")
