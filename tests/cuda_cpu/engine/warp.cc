// The warp operations of a block: lanes meet by their mask, and the last that comes computes for all.
#include <bit>

#include "cuda_cpu/engine/block.h"
#include "cuda_cpu/engine/sanitizers.h"

namespace onebit::cuda_cpu {
namespace {

/// What a shuffle from a lane outside of the mask gives: the hardware leaves it undefined, here it is a NaN.
constexpr std::uint64_t kPoison = 0x7FBADBAD7FBADBADU;

/// Calls visit(lane) for the bits of `lanes` in rising order.
template <typename Visit>
void for_each_lane(std::uint32_t lanes, Visit visit) {
  for (; lanes != 0; lanes &= lanes - 1) visit(static_cast<unsigned>(std::countr_zero(lanes)));
}

bool is_reduction(WarpOperation operation) {
  return operation >= WarpOperation::kReduceAdd;
}
bool is_shuffle(WarpOperation operation) {
  return operation >= WarpOperation::kShuffle && operation <= WarpOperation::kShuffleXor;
}

std::uint32_t reduced(WarpOperation operation, std::uint32_t a, std::uint32_t b) {
  switch (operation) {
    case WarpOperation::kReduceAdd:
      return a + b;
    case WarpOperation::kReduceMin:
      return a < b ? a : b;
    case WarpOperation::kReduceMax:
      return a > b ? a : b;
    case WarpOperation::kReduceAnd:
      return a & b;
    case WarpOperation::kReduceOr:
      return a | b;
    default:
      return a ^ b;
  }
}

/// The lane that `fiber`'s shuffle reads: its own where the segment ends.
unsigned source_lane(const Fiber& fiber) {
  const unsigned lane = fiber.lane();
  const unsigned first = lane & ~(fiber.width - 1);
  const unsigned end = first + fiber.width;
  switch (fiber.operation) {
    case WarpOperation::kShuffle:
      return first + (fiber.argument & (fiber.width - 1));
    case WarpOperation::kShuffleUp:
      return lane < first + fiber.argument ? lane : lane - fiber.argument;
    case WarpOperation::kShuffleDown:
      return lane + fiber.argument >= end ? lane : lane + fiber.argument;
    default:
      return (lane ^ fiber.argument) >= end ? lane : lane ^ fiber.argument;
  }
}

}  // namespace

const char* name_of(WarpOperation operation) {
  constexpr const char* kNames[] = {
      "__syncwarp",        "__ballot_sync",    "__shfl_sync",       "__shfl_up_sync",    "__shfl_down_sync",
      "__shfl_xor_sync",   "__match_any_sync", "__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync",
      "__reduce_and_sync", "__reduce_or_sync", "__reduce_xor_sync"};
  return kNames[static_cast<std::size_t>(operation)];
}

std::uint64_t Block::warp_operation(Fiber& self, WarpOperation operation, std::uint32_t mask,
                                    std::uint64_t value, std::uint32_t argument, std::uint32_t width) {
  self.state = Fiber::State::kInWarpOperation;
  self.operation = operation;
  self.mask = mask;
  self.value = value;
  self.argument = argument;
  self.width = width;
  if ((mask & self.lane_bit()) == 0) give_up("a warp operation whose mask lacks the calling lane");
  Warp& warp = warps_[self.warp()];
  std::size_t at = 0;
  while (at < warp.meeting_count && warp.meetings[at].mask != mask) ++at;
  if (at == warp.meeting_count) {
    for (std::size_t i = 0; i < at; ++i) {
      if ((warp.meetings[i].mask & mask) != 0) give_up("warp operations of overlapping masks met");
    }
    warp.meetings[warp.meeting_count++] = {mask, 0, operation,
                                           &warp.edges[warp.next_edge++ % warp.edges.size()]};
  }
  Meeting& meeting = warp.meetings[at];
  if (meeting.operation != operation) give_up("different warp operations met");
  meeting.arrived |= self.lane_bit();
  char* const edge = meeting.edge;  // `meeting` may be gone when this lane goes on
  if (operation == WarpOperation::kSync) release(edge);
  if (complete(self.warp(), at)) {
    finish_meeting(self.warp(), at, &self);
    after_completing(self);
  } else {
    give_way(self);
  }
  if (operation == WarpOperation::kSync) acquire(edge);
  return self.result;
}

bool Block::complete(unsigned warp, std::size_t meeting) const {
  const Meeting& here = warps_[warp].meetings[meeting];
  return (here.arrived & warps_[warp].live) == (here.mask & warps_[warp].live);
}

void Block::finish_meeting(unsigned warp, std::size_t at, const Fiber* self) {
  const Meeting meeting = warps_[warp].meetings[at];
  warps_[warp].meetings[at] = warps_[warp].meetings[--warps_[warp].meeting_count];
  Fiber* const lanes = &fibers_[warp * kWarpLanes];
  const std::uint32_t present = meeting.mask & warps_[warp].live;

  std::uint64_t common = 0;
  if (meeting.operation == WarpOperation::kBallot) {
    for_each_lane(present, [&](unsigned lane) { common |= lanes[lane].value << lane; });
  } else if (is_reduction(meeting.operation) && present != 0) {
    const auto first = static_cast<unsigned>(std::countr_zero(present));
    common = lanes[first].value;
    for_each_lane(present & (present - 1), [&](unsigned lane) {
      common = reduced(meeting.operation, static_cast<std::uint32_t>(common),
                       static_cast<std::uint32_t>(lanes[lane].value));
    });
  }
  for_each_lane(present, [&](unsigned lane) {
    Fiber& fiber = lanes[lane];
    if (is_shuffle(meeting.operation)) {
      const unsigned source = source_lane(fiber);
      fiber.result = ((present >> source) & 1U) != 0 ? lanes[source].value : kPoison;
    } else if (meeting.operation == WarpOperation::kMatchAny) {
      std::uint32_t equal = 0;
      for_each_lane(present,
                    [&](unsigned other) { equal |= (lanes[other].value == fiber.value ? 1U : 0U) << other; });
      fiber.result = equal;
    } else {
      fiber.result = common;
    }
    fiber.state = Fiber::State::kReady;
    if (&fiber != self) push(fiber.index);
  });
}

}  // namespace onebit::cuda_cpu

extern "C" std::uint64_t onebit_cuda_cpu_warp(onebit::cuda_cpu::WarpOperation operation, std::uint32_t mask,
                                              std::uint64_t value, std::uint32_t argument,
                                              std::uint32_t width) {
  onebit::cuda_cpu::Fiber& self = *onebit::cuda_cpu::current_fiber();
  return self.block->warp_operation(self, operation, mask, value, argument, width);
}
extern "C" std::uint32_t onebit_cuda_cpu_active_mask() {
  return onebit::cuda_cpu::current_fiber()->lane_bit();
}
