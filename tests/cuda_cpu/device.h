// What CUDA kernels need that the C++ compiler lacks: with this header g++ compiles .cu files for the CPU.
//
// The types and the conversions of half and bfloat16 are those of the real CUDA headers, in their host form.
// Not there: inline PTX, cooperative groups, cub, textures, tensor cores, constant memory written by the
// host. Threads: a CUDA thread is a fiber; all fibers of a block share one thread of the system (engine/).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "cuda_cpu/device/arithmetic.h"
#include "cuda_cpu/device/kernel.h"
#include "cuda_cpu/device/memory.h"
#include "cuda_cpu/device/threads.h"
