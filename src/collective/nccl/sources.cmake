# The schedule on NCCL and on our own transports: for libonebit-cuda.so, and for tests without a GPU.
set(onebit_collective_nccl_kernels "${CMAKE_CURRENT_LIST_DIR}/stream_kernels.cu")
set(onebit_collective_nccl_sources
    admission.cc device_codec.cc exchange_thread.cc host_wire.cc level_call.cc level_run.cc levels.cc nccl_communicator.cc nccl_wire.cc
    residual_slots.cc running.cc stream_words.cc)
list(TRANSFORM onebit_collective_nccl_sources PREPEND "${CMAKE_CURRENT_LIST_DIR}/")
