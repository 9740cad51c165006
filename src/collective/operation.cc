#include "collective/operation.h"

namespace onebit::collective {

Status request_failure(const Peers& peers, std::size_t peer) {
  const transport::Endpoint& endpoint = *peers.endpoints[peer];
  if (!endpoint.status().ok()) return endpoint.status();
  return Status::error(Code::kRemoteError, "rank {} at {} has destroyed its communicator", peer,
                       endpoint.peer());
}

}  // namespace onebit::collective
