#include "collective/direct_exchange.h"

namespace onebit::collective {

void DirectExchange::add_send(std::size_t peer, std::span<const std::byte> bytes) {
  Transfer& added = transfers_.emplace_back();
  added.peer = peer;
  added.out = bytes.data();
  added.bytes = bytes.size();
}

void DirectExchange::add_receive(std::size_t peer, std::span<std::byte> bytes) {
  Transfer& added = transfers_.emplace_back();
  added.peer = peer;
  added.incoming = true;
  added.in = bytes.data();
  added.bytes = bytes.size();
}

Status DirectExchange::start() {
  // Everything is pending before anything starts: a start may fail halfway.
  pending_ = transfers_.size();
  const std::uint64_t tag = message_tag(peers_.operation, round_, 0);
  for (Transfer& each : transfers_) {
    each.request.user = &each;
    each.request.notify = true;
    transport::Endpoint& endpoint = *peers_.endpoints[each.peer];
    const Status status = each.incoming
                              ? endpoint.receive(each.request, each.in, each.bytes, tag, peers_.check)
                              : endpoint.send(each.request, each.out, each.bytes, tag, peers_.check);
    ONEBIT_RETURN_IF_ERROR(started(peers_, each.peer, status));
  }
  return Status();
}

Status DirectExchange::on_request(transport::Request& request) {
  const auto& ended = *static_cast<Transfer*>(request.user);
  --pending_;
  if (request.state == transport::Request::State::kFailed) return request_failure(peers_, ended.peer);
  if (ended.incoming && request.bytes != ended.bytes) {
    return Status::error(Code::kInvalidUsage, "rank {} sent {} bytes where {} were due", ended.peer,
                         request.bytes, ended.bytes);
  }
  return Status();
}

std::vector<std::size_t> DirectExchange::waiting_for() const {
  std::vector<std::size_t> late;
  for (const bool incoming : {true, false}) {
    for (const Transfer& each : transfers_) {
      if (late.empty() || incoming) {
        if (each.incoming == incoming && each.request.state == transport::Request::State::kPending) {
          late.push_back(each.peer);
        }
      }
    }
    if (!late.empty()) break;
  }
  return late;
}

}  // namespace onebit::collective
