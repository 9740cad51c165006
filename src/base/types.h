// The element types and reductions that onebit knows, with their names and sizes. No state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace onebit {

/// Element types. The C API's onebitDataType_t has the same numbers, which are NCCL's.
enum class DataType : std::uint8_t {
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBFloat16 = 9,
};

/// Reductions. The C API's onebitRedOp_t has the same numbers, which are NCCL's.
enum class ReduceOp : std::uint8_t {
  kSum = 0,
  kAvg = 4,
};

/// Bytes an element.
constexpr std::size_t size_of(DataType type) noexcept {
  switch (type) {
    case DataType::kFloat16:
    case DataType::kBFloat16:
      return 2;
    case DataType::kInt32:
    case DataType::kFloat32:
      return 4;
    case DataType::kInt64:
    case DataType::kFloat64:
      return 8;
  }
  return 0;
}

/// fp32, fp16 and bf16: the types that the 1-bit codec takes.
constexpr bool is_compressible(DataType type) noexcept {
  return type == DataType::kFloat32 || type == DataType::kFloat16 || type == DataType::kBFloat16;
}

constexpr bool is_floating(DataType type) noexcept {
  return is_compressible(type) || type == DataType::kFloat64;
}

constexpr std::string_view name_of(DataType type) noexcept {
  switch (type) {
    case DataType::kInt32:
      return "int32";
    case DataType::kInt64:
      return "int64";
    case DataType::kFloat16:
      return "half";
    case DataType::kFloat32:
      return "float";
    case DataType::kFloat64:
      return "double";
    case DataType::kBFloat16:
      return "bfloat16";
  }
  return "unknown";
}

constexpr std::string_view name_of(ReduceOp op) noexcept {
  return op == ReduceOp::kSum ? "sum" : op == ReduceOp::kAvg ? "avg" : "unknown";
}

/// Reads nccl-tests' names and the common aliases (float, float32, fp32, half, fp16, bf16, double, int32
/// ...).
std::optional<DataType> parse_data_type(std::string_view name) noexcept;
std::optional<ReduceOp> parse_reduce_op(std::string_view name) noexcept;

}  // namespace onebit
