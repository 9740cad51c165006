#include "collective/nccl/level_call.h"

namespace onebit::nccl {

template <typename Each>
Result LevelCall::for_partitions(Each each) const {
  for (unsigned rank = 0; rank < levels_->place().size; ++rank) {
    const collective::Range range = plan_.partition(rank);
    if (range.length == 0) continue;
    if (const Result result = each(range, static_cast<int>(rank)); result != kSuccess) return result;
  }
  return kSuccess;
}

std::optional<Request> LevelCall::between() const {
  Request part = *request_;
  part.communicator = &levels_->compressed();
  part.stream = stream_;
  part.compressed = false;
  if (scatters()) {
    part.send = sums_;
    part.buffer = request_->send;
    return part;
  }
  if (own().length == 0) return std::nullopt;
  part.receive = at(request_->receive, own().begin);
  part.send = part.receive;
  part.shape = own().length;
  return part;
}

Result LevelCall::scatter_inside(const Functions& nccl) const {
  const LevelPlace& place = levels_->place();
  const std::size_t count = request_->shape.count;
  for (unsigned node = 0; node < place.nodes; ++node) {
    const unsigned first = place.rank(node, 0);
    std::byte* const sum = at(sums_, node * count);
    if (place.rank(node, place.size - 1) == first + place.size - 1) {
      const Result result = nccl.reduce_scatter(at(request_->send, first * count), sum, count, type(), op(),
                                                levels_->inside(), stream_);
      if (result != kSuccess) return result;
      continue;
    }
    for (unsigned root = 0; root < place.size; ++root) {
      const Result result = nccl.reduce(at(request_->send, place.rank(node, root) * count), sum, count,
                                        type(), op(), static_cast<int>(root), levels_->inside(), stream_);
      if (result != kSuccess) return result;
    }
  }
  return kSuccess;
}

Result LevelCall::reduce_inside(const Functions& nccl) const {
  if (scatters()) return scatter_inside(nccl);
  const Comm comm = levels_->inside();
  if (is_even()) {
    return nccl.reduce_scatter(request_->send, at(request_->receive, own().begin), own_count(), type(), op(),
                               comm, stream_);
  }
  return for_partitions([&](collective::Range range, int rank) {
    return nccl.reduce(at(request_->send, range.begin), at(request_->receive, range.begin), range.length,
                       type(), op(), rank, comm, stream_);
  });
}

Result LevelCall::reduce_between_exactly(const Functions& nccl) const {
  const Comm comm = levels_->between();
  if (scatters()) {
    return nccl.reduce_scatter(sums_, request_->receive, request_->shape.count, type(), op(), comm, stream_);
  }
  std::byte* const part = at(request_->receive, own().begin);
  return nccl.all_reduce(part, part, own().length, type(), op(), comm, stream_);
}

Result LevelCall::gather_inside(const Functions& nccl) const {
  if (scatters()) return kSuccess;
  const Comm comm = levels_->inside();
  if (is_even()) {
    return nccl.all_gather(at(request_->receive, own().begin), request_->receive, own_count(), type(), comm,
                           stream_);
  }
  return for_partitions([&](collective::Range range, int rank) {
    std::byte* const part = at(request_->receive, range.begin);
    return nccl.broadcast(part, part, range.length, type(), rank, comm, stream_);
  });
}

}  // namespace onebit::nccl
