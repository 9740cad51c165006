// Where each tensor of an optimizer lies in its flat state, and which stretches of it are exchanged at once.
//
// Tensors lie one after another, group by group, in their given order within a group. A *unit* is what one
// compressed allreduce takes: all tensors together; in deepspeed_compat the original's units (LAMB: all; the
// Adams: each tensor, or each group when its parameters are fp16 or bf16) with the original's padding behind
// each. Invariant: the same on all ranks, which compare describe() at the first step. Value types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "optimizer/options.h"

namespace onebit::optimizer {

/// A tensor of parameters, in the caller's memory for as long as the optimizer lives.
struct TensorSpec {
  std::string name;
  void* parameters = nullptr;
  std::size_t count = 0;
  DataType type = DataType::kFloat32;           ///< fp32, fp16 or bf16
  DataType gradient_type = DataType::kFloat32;  ///< fp32, fp16 or bf16
  std::size_t group = 0;
  const std::uint8_t* mask = nullptr;  ///< null, or `count` bytes: 0 where there is no momentum
};

class Layout {
 public:
  struct Unit {
    std::size_t begin = 0;
    std::size_t used = 0;    ///< elements of tensors
    std::size_t padded = 0;  ///< elements that are exchanged
  };

  /// kInvalidArgument naming the tensor and what is wrong with it.
  static Result<Layout> create(const Options& options, std::vector<TensorSpec> tensors, std::size_t ranks);

  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  /// Of tensor i in the flat state.
  std::size_t offset(std::size_t i) const { return offsets_[i]; }
  const std::vector<Unit>& units() const { return units_; }
  /// Elements of the flat state, padding included.
  std::size_t elements() const { return elements_; }
  bool has_masters() const { return has_masters_; }
  /// A line for each thing that must be equal on all ranks.
  std::vector<std::string> describe(const Options& options) const;

 private:
  std::vector<TensorSpec> tensors_;
  std::vector<std::size_t> offsets_;
  std::vector<Unit> units_;
  std::size_t elements_ = 0;
  bool has_masters_ = false;
};

}  // namespace onebit::optimizer
