#include "base/types.h"

namespace onebit {

std::optional<DataType> parse_data_type(std::string_view name) noexcept {
  if (name == "float" || name == "float32" || name == "fp32") return DataType::kFloat32;
  if (name == "half" || name == "float16" || name == "fp16") return DataType::kFloat16;
  if (name == "bfloat16" || name == "bf16") return DataType::kBFloat16;
  if (name == "double" || name == "float64" || name == "fp64") return DataType::kFloat64;
  if (name == "int32" || name == "int") return DataType::kInt32;
  if (name == "int64") return DataType::kInt64;
  return std::nullopt;
}

std::optional<ReduceOp> parse_reduce_op(std::string_view name) noexcept {
  if (name == "sum") return ReduceOp::kSum;
  if (name == "avg") return ReduceOp::kAvg;
  return std::nullopt;
}

}  // namespace onebit
