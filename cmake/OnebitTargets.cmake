# Helpers for the targets of onebit: one target a layer, one program a test file.

find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
pkg_check_modules(SODIUM REQUIRED IMPORTED_TARGET libsodium)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
# Its header; the library is opened at run time.
pkg_check_modules(IBVERBS REQUIRED libibverbs)
# The same of UCX; without it the transport is left out.
pkg_check_modules(UCX ucx>=1.13)
if(NOT UCX_FOUND)
  message(STATUS "onebit: no UCX (libucx-dev 1.13 or newer): ONEBIT_TRANSPORT=ucx will not be there")
endif()

# What every target of ours is compiled with; onebit_plain_options is the same without sanitizers.
add_library(onebit_plain_options INTERFACE)
target_compile_options(onebit_plain_options INTERFACE -Wall -Wextra -Werror -Wshadow
                       $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor -Woverloaded-virtual>)
# g++ 12 at -O3 sees overflows in inserts into a std::vector, and overlaps in assignments to a std::string, that are none.
target_compile_options(onebit_plain_options INTERFACE
                       $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-stringop-overflow -Wno-restrict>)
target_compile_options(onebit_plain_options INTERFACE -ffp-contract=off)
add_library(onebit_options INTERFACE)
target_link_libraries(onebit_options INTERFACE onebit_plain_options)
if(ONEBIT_SANITIZE)
  target_compile_options(onebit_options INTERFACE -fsanitize=${ONEBIT_SANITIZE} -fno-omit-frame-pointer
                         -fno-sanitize-recover=all)
  target_link_options(onebit_options INTERFACE -fsanitize=${ONEBIT_SANITIZE})
endif()

# onebit_add_layer(NAME SOURCES ... LAYERS ... LIBRARIES ...)
# A static library onebit_NAME of this folder. Its headers are included as "NAME/header.h"; a target sees the headers of NAME
# and of the layers named in LAYERS (with theirs), no others: each layer has an include root of its own.
function(onebit_add_layer name)
  cmake_parse_arguments(arg "" "" "SOURCES;LAYERS;LIBRARIES" ${ARGN})
  set(root "${PROJECT_BINARY_DIR}/layers/${name}")
  file(MAKE_DIRECTORY "${root}")
  file(CREATE_LINK "${CMAKE_CURRENT_SOURCE_DIR}" "${root}/${name}" SYMBOLIC)
  add_library(onebit_${name} STATIC ${arg_SOURCES})
  target_include_directories(onebit_${name} PUBLIC "$<BUILD_INTERFACE:${root}>")
  list(TRANSFORM arg_LAYERS PREPEND onebit_)
  target_link_libraries(onebit_${name} PUBLIC ${arg_LAYERS} ${arg_LIBRARIES}
                        PRIVATE $<BUILD_INTERFACE:onebit_options>)
endfunction()

# onebit_add_test(NAME SOURCES ... LAYERS ... LIBRARIES ... LABELS ... TIMEOUT seconds)
# A GoogleTest program NAME, run by ctest as one test. Tests with the label "fast" also run under the sanitizers;
# the others are built there only by name.
function(onebit_add_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;LAYERS;LIBRARIES;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  list(TRANSFORM arg_LAYERS PREPEND onebit_)
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LAYERS} ${arg_LIBRARIES} onebit_options GTest::gtest_main GTest::gmock)
  if(ONEBIT_SANITIZE)
    # What it tests is optimised; its own code takes longer to compile than to run.
    target_compile_options(${name} PRIVATE -O0)
    if(NOT fast IN_LIST arg_LABELS)
      set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
    endif()
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}")
endfunction()
