#include "collective/operation.h"

namespace onebit::collective {

Status request_failure(const Peers& peers, std::size_t peer) {
  const transport::Endpoint& endpoint = *peers.endpoints[peer];
  if (!endpoint.status().ok()) return endpoint.status().with_context(formatted("rank {}", peer));
  return Status::error(Code::kRemoteError, "rank {} at {} has destroyed its communicator", peer,
                       endpoint.peer());
}

Status started(const Peers& peers, std::size_t peer, const Status& status) {
  if (status.ok()) return status;
  const transport::Endpoint& endpoint = *peers.endpoints[peer];
  if (endpoint.state() == transport::Endpoint::State::kFinished) return request_failure(peers, peer);
  return status.with_context(formatted("rank {}", peer));
}

}  // namespace onebit::collective
