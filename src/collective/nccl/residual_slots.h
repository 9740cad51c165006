// The residuals of a communicator's tensors in device memory, and which tensor a call is about.
//
// A call with a tag is about that tag's tensor; its residuals start anew when the shape, type or op changes.
// A call without one is recognised by its send buffer's address, shape, type and op, and by the call before
// it: jobs reduce the same buffers in the same order in every step. When a known buffer comes after another
// call than last time, its residuals are reset, since it may hold another tensor now. What has not come for
// long gives its memory to new tensors of the same shape, after a reset; so does the least recently used one
// when the device has no memory left. Two tensors that take turns in one buffer, one right after the other,
// cannot be told apart. All this is a rank's own matter: ranks need not agree in it. One thread at a time;
// the device must be current.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/types.h"
#include "collective/nccl/device_codec.h"

namespace onebit::nccl {

/// What tells a call's tensor from others.
struct Identity {
  std::string tag;               ///< empty: recognised by the rest
  const void* buffer = nullptr;  ///< null with a tag
  Shape shape = 0;
  DataType type{};
  ReduceOp op{};

  friend bool operator==(const Identity&, const Identity&) = default;
};

class ResidualSlots {
 public:
  /// Makes residuals of zeros for a tensor; nothing when there is no memory left.
  using Make = std::function<std::optional<Residuals>(Shape shape)>;
  explicit ResidualSlots(Make make) : make_(std::move(make)) {}

  /// True when a tensor of this shape can be compressed, whatever comes: the memory for one is kept.
  bool reserve(Shape shape);
  /// Whose they are to be from now on.
  struct Found {
    const Residuals* residuals;
    bool start_anew;  ///< to be reset before the call uses them, after what was called before
  };
  /// The residuals for the call, whose shape must have been reserved. Nothing if there are none: no memory.
  std::optional<Found> find(const Identity& identity);

  std::size_t bytes() const;
  std::uint64_t resets() const { return resets_; }

 private:
  struct Slot {
    std::uint64_t number = 0;  ///< from 1; a new one when the slot is given to another tensor
    Identity identity;
    Residuals residuals;
    std::uint64_t last_use = 0;
    std::uint64_t uses = 0;
    std::uint64_t before = 0;  ///< the slot of the call before; 0: not known yet
  };
  struct Hash {
    std::size_t operator()(const Identity& identity) const;
  };

  Slot* take(const Identity& identity);
  Slot* least_recent(Shape shape);
  /// One of a tensor that seems to be gone.
  Slot* abandoned(Shape shape);
  void drop_other_shapes(const Identity& identity);

  Make make_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::unordered_map<Identity, Slot*, Hash> by_identity_;
  std::map<Shape, std::optional<Residuals>> spare_;  ///< taken by a shape's first tensor
  std::uint64_t clock_ = 0;
  std::uint64_t numbers_ = 0;
  std::uint64_t previous_ = 0;
  std::uint64_t resets_ = 0;
  bool said_full_ = false;
};

}  // namespace onebit::nccl
