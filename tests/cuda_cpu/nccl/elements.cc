#include "cuda_cpu/nccl/elements.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cstdint>

namespace onebit::nccl_stand_in {
namespace {

/// In which type an element is computed, and how it gets there and back.
template <typename T>
struct Arithmetic {
  using Wide = T;
  static Wide widen(T value) { return value; }
  static T narrow(Wide value) { return value; }
};
template <>
struct Arithmetic<__half> {
  using Wide = float;
  static float widen(__half value) { return __half2float(value); }
  static __half narrow(float value) { return __float2half(value); }
};
template <>
struct Arithmetic<__nv_bfloat16> {
  using Wide = float;
  static float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
  static __nv_bfloat16 narrow(float value) { return __float2bfloat16(value); }
};
template <>
struct Arithmetic<__nv_fp8_e4m3> {
  using Wide = float;
  static float widen(__nv_fp8_e4m3 value) { return static_cast<float>(value); }
  static __nv_fp8_e4m3 narrow(float value) { return __nv_fp8_e4m3(value); }
};
template <>
struct Arithmetic<__nv_fp8_e5m2> {
  using Wide = float;
  static float widen(__nv_fp8_e5m2 value) { return static_cast<float>(value); }
  static __nv_fp8_e5m2 narrow(float value) { return __nv_fp8_e5m2(value); }
};

/// Calls visit(T*) for the element type.
template <typename Visit>
void with_type(ncclDataType_t type, Visit visit) {
  switch (type) {
    case ncclInt8:
      return visit(static_cast<std::int8_t*>(nullptr));
    case ncclUint8:
      return visit(static_cast<std::uint8_t*>(nullptr));
    case ncclInt32:
      return visit(static_cast<std::int32_t*>(nullptr));
    case ncclUint32:
      return visit(static_cast<std::uint32_t*>(nullptr));
    case ncclInt64:
      return visit(static_cast<std::int64_t*>(nullptr));
    case ncclUint64:
      return visit(static_cast<std::uint64_t*>(nullptr));
    case ncclFloat16:
      return visit(static_cast<__half*>(nullptr));
    case ncclFloat32:
      return visit(static_cast<float*>(nullptr));
    case ncclFloat64:
      return visit(static_cast<double*>(nullptr));
    case ncclBfloat16:
      return visit(static_cast<__nv_bfloat16*>(nullptr));
    case ncclFloat8e4m3:
      return visit(static_cast<__nv_fp8_e4m3*>(nullptr));
    case ncclFloat8e5m2:
      return visit(static_cast<__nv_fp8_e5m2*>(nullptr));
    default:
      return;
  }
}

template <typename Wide>
Wide combine(Wide a, Wide b, ncclRedOp_t op) {
  switch (op) {
    case ncclProd:
      return static_cast<Wide>(a * b);
    case ncclMax:
      return std::max(a, b);
    case ncclMin:
      return std::min(a, b);
    default:
      return static_cast<Wide>(a + b);
  }
}

/// data[i] = change(data[i])
template <typename T, typename Change>
void change_each(void* data, std::size_t count, Change change) {
  auto* const elements = static_cast<T*>(data);
  using A = Arithmetic<T>;
  for (std::size_t i = 0; i < count; ++i) elements[i] = A::narrow(change(A::widen(elements[i])));
}

}  // namespace

bool is_valid(ncclDataType_t type) {
  return size_of(type) > 0;
}

bool is_integer(ncclDataType_t type) {
  bool integer = false;
  with_type(type, [&](auto* tag) { integer = std::is_integral_v<std::remove_pointer_t<decltype(tag)>>; });
  return integer;
}

std::size_t size_of(ncclDataType_t type) {
  std::size_t bytes = 0;
  with_type(type, [&](auto* tag) { bytes = sizeof *tag; });
  return bytes;
}

void reduce_parts(void* parts, std::size_t part_count, std::size_t count, ncclDataType_t type,
                  ncclRedOp_t op) {
  with_type(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    using A = Arithmetic<T>;
    auto* const sum = static_cast<T*>(parts);
    for (std::size_t part = 1; part < part_count; ++part) {
      const T* const other = sum + part * count;
      for (std::size_t i = 0; i < count; ++i)
        sum[i] = A::narrow(combine(A::widen(sum[i]), A::widen(other[i]), op));
    }
  });
}

void multiply(void* data, std::size_t count, ncclDataType_t type, double factor) {
  with_type(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    using Wide = typename Arithmetic<T>::Wide;
    change_each<T>(data, count, [&](Wide x) { return static_cast<Wide>(x * static_cast<Wide>(factor)); });
  });
}

void divide(void* data, std::size_t count, ncclDataType_t type, int divisor) {
  with_type(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    using Wide = typename Arithmetic<T>::Wide;
    change_each<T>(data, count, [&](Wide x) { return static_cast<Wide>(x / static_cast<Wide>(divisor)); });
  });
}

double read_scalar(const void* scalar, ncclDataType_t type) {
  double value = 0;
  with_type(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    value = static_cast<double>(Arithmetic<T>::widen(*static_cast<const T*>(scalar)));
  });
  return value;
}

}  // namespace onebit::nccl_stand_in
