// One round of messages: sends to some ranks, receives from some, all at once. For what is small, or needs
// one hop only.
//
// Threads: used by the thread that makes the call.
#pragma once

#include <cstddef>
#include <deque>
#include <memory_resource>
#include <span>
#include <vector>

#include "collective/operation.h"

namespace onebit::collective {

class DirectExchange final : public Operation {
 public:
  /// `round` tells the rounds of one operation apart.
  DirectExchange(const Peers& peers, std::size_t round)
      : peers_(peers), round_(round), transfers_(peers.memory) {}

  /// To be called before start(). Empty messages are sent too.
  void add_send(std::size_t peer, std::span<const std::byte> bytes);
  void add_receive(std::size_t peer, std::span<std::byte> bytes);

  Status start() override;
  Status on_request(transport::Request& request) override;
  bool done() const override { return pending_ == 0; }
  std::vector<std::size_t> waiting_for() const override;

 private:
  struct Transfer {
    transport::Request request;
    std::size_t peer = 0;
    bool incoming = false;
    const std::byte* out = nullptr;
    std::byte* in = nullptr;
    std::size_t bytes = 0;
  };
  const Peers peers_;
  const std::size_t round_;
  std::pmr::deque<Transfer> transfers_;
  std::size_t pending_ = 0;
};

}  // namespace onebit::collective
