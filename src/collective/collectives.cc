// The collective calls of a communicator: which way each goes, and the set-up of its operation.

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <exception>

#include "base/log.h"
#include "collective/call_guard.h"
#include "collective/communicator.h"
#include "collective/direct_exchange.h"
#include "collective/exact_stages.h"

namespace onebit::collective {
namespace {

// Up to here an exact allreduce is latency: one hop with more bytes beats two hops.
constexpr std::size_t kFlatBytes = 8192;
constexpr std::size_t kFlatTotalBytes = 256 * 1024;
// Bytes of a piece in the exact schedule, and how many chunks are in flight.
constexpr std::size_t kExactChunkBytes = 256 * 1024;
constexpr std::size_t kExactDepth = 4;
// Below these sizes handing work to a compute thread costs more than it saves.
constexpr std::size_t kPoolElements = 128 * 1024;
constexpr std::size_t kExactPoolBytes = 4 * 1024 * 1024;
// Automatic chunks: an eighth of a partition, within these bounds.
constexpr std::size_t kSmallestChunk = 32 * 1024;
constexpr std::size_t kLargestChunk = 512 * 1024;

std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

std::size_t onebit_chunk(const Settings& settings, std::uint32_t block, std::size_t count,
                         std::size_t ranks) {
  const std::size_t unit = block == codec::kWhole ? codec::kSubBlock : block;
  const std::size_t automatic = std::clamp(count / ranks / 8, kSmallestChunk, kLargestChunk);
  return round_up(
      settings.chunk != 0 ? std::min<std::size_t>(settings.chunk, std::size_t{1} << 30) : automatic, unit);
}

std::span<const std::byte> bytes_of(const void* data, std::size_t bytes) {
  return {static_cast<const std::byte*>(data), bytes};
}
std::span<std::byte> bytes_of(void* data, std::size_t bytes) {
  return {static_cast<std::byte*>(data), bytes};
}

void copy(void* to, const void* from, std::size_t bytes) {
  if (to != from && bytes != 0) std::memcpy(to, from, bytes);
}

}  // namespace

template <typename Body>
Status Communicator::in_step(const Body& body) {
  Status status;
  try {
    status = body();
  } catch (const std::exception& error) {  // out of memory
    status = Status(Code::kSystemError, error.what());
  }
  if (status.ok() || !async_error().ok()) return status;
  return break_with(status.with_context(current_call_));
}

Status Communicator::all_reduce(const void* send, void* receive, std::size_t count, DataType type,
                                ReduceOp op, std::string_view tag) {
  const CallGuard guard(*this);
  ONEBIT_RETURN_IF_ERROR(guard.status());
  const CallFacts facts{count, type, op, tag, name_, ranks()};
  const Decision decision = decide(rules_, settings_.min_size, facts);
  if (log_level() >= LogLevel::kInfo) {
    log(LogLevel::kInfo, "allreduce of {} x {} {}, tag '{}': {}", count, name_of(type), name_of(op), tag,
        collective::explain(decision, rules_, settings_.min_size, facts));
  }
  ONEBIT_RETURN_IF_ERROR(in_step([&]() -> Status {
    if (!decision.compress) return exact_all_reduce(send, receive, count, type, op);
    say_call("1-bit allreduce of {} x {} {}, tag '{}'", count, name_of(type), name_of(op), tag);
    ONEBIT_ASSIGN_OR_RETURN(Residual * residual, residuals_.get(tag, count, type, op));
    return onebit_all_reduce(send, receive, count, type, op, tag, parameters_, *residual);
  }));
  ++(decision.compress ? statistics_.compressed_calls : statistics_.exact_calls);
  statistics_.reduced_bytes += count * size_of(type);
  return Status();
}

Status Communicator::exact_all_reduce(const void* send, void* receive, std::size_t count, DataType type,
                                      ReduceOp op) {
  const std::size_t bytes = count * size_of(type);
  const bool large = bytes >= kExactPoolBytes;
  say_call("allreduce of {} x {} {}", count, name_of(type), name_of(op));
  const Peers peers = next_operation(bytes, large);
  if (ranks() == 1 || count == 0) {
    copy(receive, send, bytes);
    return Status();
  }
  if (bytes <= kFlatBytes && bytes * ranks() <= kFlatTotalBytes) {
    // 16-bit types would be rounded in every round of doubling; flat rounds them once.
    const bool doubling = ranks() >= 4 && std::has_single_bit(ranks()) && size_of(type) >= 4;
    return doubling ? doubling_all_reduce(send, receive, count, type, op, peers)
                    : flat_all_reduce(send, receive, count, type, op, peers);
  }
  const std::size_t chunk = kExactChunkBytes / size_of(type);
  const PartitionPlan plan(count, ranks(),
                           std::min(chunk, PartitionPlan(count, ranks(), chunk).partition_elements()));
  ExactStages stages({send, receive, type, op}, plan, rank_, ranks(), kExactDepth, exact_buffers_);
  ONEBIT_RETURN_IF_ERROR(stages.allocate());
  Schedule schedule(stages, peers, plan.chunks(), kExactDepth);
  return drive(schedule, std::min(kExactDepth, plan.chunks()));
}

Status Communicator::flat_all_reduce(const void* send, void* receive, std::size_t count, DataType type,
                                     ReduceOp op, const Peers& peers) {
  const std::size_t bytes = count * size_of(type);
  ONEBIT_RETURN_IF_ERROR(exact_buffers_.slots.reserve(bytes * ranks()));
  DirectExchange exchange(peers, 0);
  std::pmr::vector<const void*> pieces(ranks(), send, peers.memory);
  for (std::size_t i = 1; i < ranks(); ++i) {
    const std::size_t peer = peers.after(i);
    exchange.add_send(peer, bytes_of(send, bytes));
    exchange.add_receive(peer, {exact_buffers_.slots.data() + peer * bytes, bytes});
    pieces[peer] = exact_buffers_.slots.data() + peer * bytes;
  }
  ONEBIT_RETURN_IF_ERROR(drive(exchange));
  codec::exact_sum(type, op, pieces, count, receive);
  return Status();
}

Status Communicator::doubling_all_reduce(const void* send, void* receive, std::size_t count, DataType type,
                                         ReduceOp op, const Peers& peers) {
  const std::size_t bytes = count * size_of(type);
  ONEBIT_RETURN_IF_ERROR(exact_buffers_.slots.reserve(bytes));
  const void* mine = send;
  const void* theirs = exact_buffers_.slots.data();
  for (std::size_t distance = 1, round = 0; distance < ranks(); distance *= 2, ++round) {
    const std::size_t peer = rank_ ^ distance;
    DirectExchange exchange(peers, round);
    exchange.add_send(peer, bytes_of(mine, bytes));
    exchange.add_receive(peer, {exact_buffers_.slots.data(), bytes});
    ONEBIT_RETURN_IF_ERROR(drive(exchange));
    // The lower rank's first on both sides, so that both get the same bits, NaNs too. AVG halves in each
    // round.
    const std::array<const void*, 2> pair{rank_ < peer ? mine : theirs, rank_ < peer ? theirs : mine};
    codec::exact_sum(type, op, pair, count, receive);
    mine = receive;
  }
  return Status();
}

Status Communicator::compressed_all_reduce(void* buffer, std::size_t count, DataType type, ReduceOp op,
                                           std::string_view name, const codec::Parameters& parameters,
                                           Residual& residual) {
  const CallGuard guard(*this);
  ONEBIT_RETURN_IF_ERROR(guard.status());
  ONEBIT_RETURN_IF_ERROR(in_step(
      [&] { return onebit_all_reduce(buffer, buffer, count, type, op, name, parameters, residual); }));
  ++statistics_.compressed_calls;
  statistics_.reduced_bytes += count * size_of(type);
  return Status();
}

Status Communicator::onebit_all_reduce(const void* send, void* receive, std::size_t count, DataType type,
                                       ReduceOp op, std::string_view tag, const codec::Parameters& parameters,
                                       Residual& residual) {
  say_call("1-bit allreduce of {} x {} {}, tag '{}'", count, name_of(type), name_of(op), tag);
  const Peers peers = next_operation(count * size_of(type), count >= kPoolElements);
  const PartitionPlan plan(count, ranks(), onebit_chunk(settings_, parameters.block, count, ranks()));
  const std::size_t depth = parameters.block == codec::kWhole ? plan.chunks() : settings_.pipeline_depth;
  OneBitStages stages({send, receive, count, type, op, parameters, codec_, &residual}, plan, rank_, ranks(),
                      depth, onebit_buffers_);
  ONEBIT_RETURN_IF_ERROR(stages.allocate());
  // Whole mode's pass before the schedule.
  const auto begin = std::chrono::steady_clock::now();
  if (peers.pool != nullptr) {
    parallel(stages.measure_steps(), [&](std::size_t step) { stages.measure(step); });
  } else {
    for (std::size_t step = 0; step < stages.measure_steps(); ++step) stages.measure(step);
  }
  stages.finish_measure();
  const std::chrono::nanoseconds measuring = std::chrono::steady_clock::now() - begin;
  Schedule schedule(stages, peers, plan.chunks(), depth);
  residual.in_call = true;
  ONEBIT_RETURN_IF_ERROR(drive(schedule, std::min(depth, plan.chunks())));
  residual.in_call = false;
  statistics_.compressed += schedule.times();
  statistics_.compressed.call += measuring;
  statistics_.compressed.encode += measuring;
  return Status();
}

Status Communicator::all_gather(const void* send, void* receive, std::size_t bytes) {
  const CallGuard guard(*this);
  ONEBIT_RETURN_IF_ERROR(guard.status());
  return gather_in_call(send, receive, bytes);
}

Status Communicator::gather_in_call(const void* send, void* receive, std::size_t bytes) {
  return in_step([&]() -> Status {
    say_call("allgather of {} bytes a rank", bytes);
    const Peers peers = next_operation(bytes, false);
    std::byte* const all = static_cast<std::byte*>(receive);
    copy(all + rank_ * bytes, send, bytes);
    if (bytes == 0) return Status();
    DirectExchange exchange(peers, 0);
    for (std::size_t i = 1; i < ranks(); ++i) {
      const std::size_t peer = peers.after(i);
      exchange.add_send(peer, bytes_of(send, bytes));
      exchange.add_receive(peer, {all + peer * bytes, bytes});
    }
    return drive(exchange);
  });
}

Status Communicator::broadcast(const void* send, void* receive, std::size_t bytes, std::size_t root) {
  const CallGuard guard(*this);
  ONEBIT_RETURN_IF_ERROR(guard.status());
  return in_step([&]() -> Status {
    say_call("broadcast of {} bytes from rank {}", bytes, root);
    const Peers peers = next_operation(bytes, false);
    if (rank_ == root) copy(receive, send, bytes);
    if (bytes == 0) return Status();
    std::byte* const buffer = static_cast<std::byte*>(receive);
    if (bytes <= kFlatTotalBytes || ranks() == 2) {
      DirectExchange exchange(peers, 0);
      for (std::size_t i = 1; i < ranks() && rank_ == root; ++i)
        exchange.add_send(peers.after(i), {buffer, bytes});
      if (rank_ != root) exchange.add_receive(root, {buffer, bytes});
      return drive(exchange);
    }
    // Large: the root deals out the parts, then every rank gives its own part to the others. The root sends
    // each byte once.
    const PartitionPlan plan(bytes, ranks(), bytes);
    const auto part = [&](std::size_t rank) {
      const Range range = plan.partition(rank);
      return bytes_of(static_cast<void*>(buffer + range.begin), range.length);
    };
    DirectExchange deal(peers, 0);
    for (std::size_t i = 1; i < ranks() && rank_ == root; ++i)
      deal.add_send(peers.after(i), part(peers.after(i)));
    if (rank_ != root) deal.add_receive(root, part(rank_));
    ONEBIT_RETURN_IF_ERROR(drive(deal));
    DirectExchange share(peers, 1);
    for (std::size_t i = 1; i < ranks(); ++i) {
      const std::size_t peer = peers.after(i);
      if (peer != root) share.add_send(peer, part(rank_));
      if (rank_ != root) share.add_receive(peer, part(peer));
    }
    return drive(share);
  });
}

Status Communicator::barrier() {
  const CallGuard guard(*this);
  ONEBIT_RETURN_IF_ERROR(guard.status());
  return in_step([&]() -> Status {
    say_call("barrier");
    DirectExchange exchange(next_operation(0, false), 0);
    for (std::size_t i = 1; i < ranks(); ++i) {
      const std::size_t peer = (rank_ + i) % ranks();
      exchange.add_send(peer, {});
      exchange.add_receive(peer, {});
    }
    return drive(exchange);
  });
}

}  // namespace onebit::collective
