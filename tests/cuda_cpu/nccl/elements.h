// Arithmetic on buffers of NCCL's element types. Sums of half, bfloat16 and float8 round after each addition,
// as NCCL's do. No state.
#pragma once

#include <nccl.h>

#include <cstddef>

namespace onebit::nccl_stand_in {

bool is_valid(ncclDataType_t type);
bool is_integer(ncclDataType_t type);
/// Bytes.
std::size_t size_of(ncclDataType_t type);

/// `parts` holds `part_count` buffers of `count` elements, one after the other: reduces all into the first,
/// in their order. Other operations than product, minimum and maximum are sums.
void reduce_parts(void* parts, std::size_t part_count, std::size_t count, ncclDataType_t type,
                  ncclRedOp_t op);
void multiply(void* data, std::size_t count, ncclDataType_t type, double factor);
void divide(void* data, std::size_t count, ncclDataType_t type, int divisor);
double read_scalar(const void* scalar, ncclDataType_t type);

}  // namespace onebit::nccl_stand_in
