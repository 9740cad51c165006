#include "collective/nccl/residual_slots.h"

#include <utility>

#include "base/log.h"

namespace onebit::nccl {
namespace {

/// A tensor without a tag that did not come in this many calls, and twice as many as there are tensors of its
/// size, is taken to be gone.
constexpr std::uint64_t kLongAgo = 16;
/// Tensors of a count that have come once: with more, the oldest is taken to be gone. A job that shows a new
/// buffer in every call would fill the memory.
constexpr std::uint64_t kNewcomers = 128;

}  // namespace

std::size_t ResidualSlots::Hash::operator()(const Identity& identity) const {
  std::size_t hash = std::hash<std::string>()(identity.tag);
  for (const std::size_t part :
       {reinterpret_cast<std::size_t>(identity.buffer), identity.shape.count,
        static_cast<std::size_t>(identity.shape.scatters), static_cast<std::size_t>(identity.type),
        static_cast<std::size_t>(identity.op)}) {
    hash = (hash ^ part) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
  }
  return hash;
}

bool ResidualSlots::reserve(Shape shape) {
  if (spare_.contains(shape)) return true;
  std::optional<Residuals> made = make_(shape);
  if (!made) return false;
  spare_.emplace(shape, std::move(made));
  return true;
}

std::optional<ResidualSlots::Found> ResidualSlots::find(const Identity& identity) {
  ++clock_;
  Slot* slot = nullptr;
  bool starts_anew = false;
  if (const auto at = by_identity_.find(identity); at != by_identity_.end()) {
    slot = at->second;
    const bool moved = identity.tag.empty() && slot->before != 0 && slot->before != previous_;
    if (moved) ++resets_;
    starts_anew = moved;
  } else {
    if (!identity.tag.empty()) drop_other_shapes(identity);
    slot = take(identity);
    if (slot == nullptr) return std::nullopt;
    starts_anew = true;
  }
  slot->last_use = clock_;
  ++slot->uses;
  slot->before = previous_;
  previous_ = slot->number;
  return Found{&slot->residuals, starts_anew};
}

void ResidualSlots::drop_other_shapes(const Identity& identity) {
  const auto is_other = [&](const auto& slot) { return slot->identity.tag == identity.tag; };
  for (const auto& slot : slots_) {
    if (!is_other(slot)) continue;
    log(LogLevel::kWarn, "tag '{}' had {} elements of {} and has {} of {} now: its residuals start anew",
        identity.tag, slot->identity.shape.count, name_of(slot->identity.type), identity.shape.count,
        name_of(identity.type));
    by_identity_.erase(slot->identity);
    ++resets_;
    // What was reserved stays: another tensor of this shape may come.
    if (auto& spare = spare_[slot->identity.shape]; !spare) spare = std::move(slot->residuals);
  }
  std::erase_if(slots_, is_other);
}

ResidualSlots::Slot* ResidualSlots::least_recent(Shape shape) {
  Slot* oldest = nullptr;
  for (const auto& slot : slots_) {
    if (slot->identity.shape != shape) continue;
    if (oldest == nullptr || slot->last_use < oldest->last_use) oldest = slot.get();
  }
  return oldest;
}

ResidualSlots::Slot* ResidualSlots::abandoned(Shape shape) {
  Slot* oldest = nullptr;
  Slot* oldest_newcomer = nullptr;
  std::uint64_t same = 0;
  std::uint64_t newcomers = 0;
  const auto older = [](const Slot* one, const Slot* than) {
    return than == nullptr || one->last_use < than->last_use;
  };
  for (const auto& slot : slots_) {
    if (slot->identity.shape != shape) continue;
    ++same;
    if (!slot->identity.tag.empty()) continue;
    if (older(slot.get(), oldest)) oldest = slot.get();
    if (slot->uses > 1) continue;
    ++newcomers;
    if (older(slot.get(), oldest_newcomer)) oldest_newcomer = slot.get();
  }
  if (newcomers >= kNewcomers) return oldest_newcomer;
  return oldest != nullptr && oldest->last_use + kLongAgo + 2 * same < clock_ ? oldest : nullptr;
}

ResidualSlots::Slot* ResidualSlots::take(const Identity& identity) {
  const Shape shape = identity.shape;
  Slot* slot = nullptr;
  if (auto& spare = spare_[shape]; spare) {
    slot = slots_.emplace_back(std::make_unique<Slot>()).get();
    slot->residuals = std::move(*std::exchange(spare, std::nullopt));
  } else if (slot = abandoned(shape); slot == nullptr) {
    if (std::optional<Residuals> made = make_(shape); made) {
      slot = slots_.emplace_back(std::make_unique<Slot>()).get();
      slot->residuals = std::move(*made);
    } else {
      slot = least_recent(shape);
      if (slot == nullptr) return nullptr;
      if (!std::exchange(said_full_, true)) {
        log(LogLevel::kWarn,
            "no device memory is left for the residuals of another tensor of {} elements: from now on the "
            "one used longest ago gives its own up",
            shape.count);
      }
    }
  }
  if (slot->number != 0) {  // it was another tensor's
    by_identity_.erase(slot->identity);
    ++resets_;
  }
  slot->number = ++numbers_;
  slot->identity = identity;
  slot->before = 0;
  slot->uses = 0;
  by_identity_[identity] = slot;
  return slot;
}

std::size_t ResidualSlots::bytes() const {
  std::size_t sum = 0;
  for (const auto& slot : slots_) sum += slot->residuals.bytes();
  for (const auto& [shape, spare] : spare_) sum += spare ? spare->bytes() : 0;
  return sum;
}

}  // namespace onebit::nccl
