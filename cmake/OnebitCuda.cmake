# What the CUDA parts need. ONEBIT_CUDA=AUTO takes a toolkit where there is one; ON insists on it; OFF leaves the CUDA parts
# out. The core needs none of it. Sets ONEBIT_WITH_CUDA and, where the kernels can also run without a GPU,
# ONEBIT_WITH_CUDA_CPU.

set(ONEBIT_CUDA AUTO CACHE STRING "Build the CUDA parts: AUTO (where a toolkit is found), ON or OFF")
set_property(CACHE ONEBIT_CUDA PROPERTY STRINGS AUTO ON OFF)
set(ONEBIT_WITH_CUDA OFF)
set(ONEBIT_WITH_CUDA_CPU OFF)

if(NOT ONEBIT_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "ONEBIT_CUDA='${ONEBIT_CUDA}' is not AUTO, ON or OFF")
endif()
if(ONEBIT_CUDA STREQUAL "OFF")
  message(STATUS "CUDA parts: left out (ONEBIT_CUDA=OFF)")
  return()
endif()

find_package(CUDAToolkit QUIET)
if(CUDAToolkit_FOUND AND CUDAToolkit_VERSION VERSION_LESS 13.0)
  set(onebit_cuda_missing "the toolkit in ${CUDAToolkit_BIN_DIR} is ${CUDAToolkit_VERSION}, older than 13.0")
elseif(NOT CUDAToolkit_FOUND)
  set(onebit_cuda_missing "no CUDA toolkit found (set CUDAToolkit_ROOT to one)")
endif()
if(onebit_cuda_missing)
  if(ONEBIT_CUDA STREQUAL "ON")
    message(FATAL_ERROR "ONEBIT_CUDA=ON, but ${onebit_cuda_missing}")
  endif()
  message(STATUS "CUDA parts: left out, ${onebit_cuda_missing}")
  return()
endif()
set(ONEBIT_WITH_CUDA ON)

# The headers of src/cuda, for CUDA sources, as "cuda/launch.h".
set(onebit_cuda_root "${PROJECT_BINARY_DIR}/layers/cuda")
file(MAKE_DIRECTORY "${onebit_cuda_root}")
file(CREATE_LINK "${PROJECT_SOURCE_DIR}/src/cuda" "${onebit_cuda_root}/cuda" SYMBOLIC)
add_library(onebit_cuda_headers INTERFACE)
target_include_directories(onebit_cuda_headers INTERFACE "${onebit_cuda_root}")
target_include_directories(onebit_cuda_headers SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(ONEBIT_WITH_CUDA_CPU ON)
  message(STATUS "CUDA parts: with the toolkit ${CUDAToolkit_VERSION}; their tests run on the CPU")
else()
  message(STATUS "CUDA parts: with the toolkit ${CUDAToolkit_VERSION}; without their tests on the CPU, "
                 "which are made for x86-64 and this is ${CMAKE_SYSTEM_PROCESSOR}")
endif()

# onebit_add_cuda_cpu_kernels(NAME SOURCES...)
# A static library NAME of CUDA sources (.cu, .cc) compiled by the C++ compiler to run on the CPU: see
# docs/cuda-on-cpu.md. Whatever links to it runs on the stand-in for the CUDA run time. For tests only.
function(onebit_add_cuda_cpu_kernels name)
  set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX)
  add_library(${name} STATIC ${ARGN})
  target_link_libraries(${name} PUBLIC onebit_cuda_cpu PRIVATE onebit_options)
endfunction()
