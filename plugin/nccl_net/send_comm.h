// The sending end: a pool of requests, and what may go to the transport now.
//
// Messages go in order, but for those of a tag that the receiver has asked to hold (receive_comm.h says why):
// they wait here, and others overtake them. What the transport has but has not sent is limited, so that this
// stays possible. Threads: those of Comm.
#pragma once

#include <deque>
#include <vector>

#include "nccl_net/comm.h"

namespace onebit::nccl_net {

class SendComm final : public Comm {
 public:
  explicit SendComm(Line line);
  ~SendComm() override;

  /// Starts to send; null for "try again later": as many requests are in flight as there may be.
  /// `memory` may be null; else it is there until the request has ended.
  Result<Operation*> send(const void* data, std::size_t bytes, Tag tag, transport::Memory* memory);
  Status test(Operation& operation, bool& done, int* sizes) override;

 private:
  struct Send : Operation {
    transport::Request request;
    const void* data = nullptr;
    std::size_t bytes = 0;
    Tag tag = 0;
    transport::Memory* memory = nullptr;
    bool submitted = false;
    bool settled = false;  ///< no longer counted in `unsent_`
    Send* next_free = nullptr;
  };

  bool idle() const override { return in_flight_ == 0; }
  bool held(Tag tag) const noexcept;
  Status submit(Send& send);
  void settle(Send& send) noexcept;
  Status submit_waiting();
  Status advance();
  Status take_control(std::uint64_t word);

  std::vector<Send> sends_;
  Send* free_ = nullptr;
  std::size_t in_flight_ = 0;
  std::deque<Send*> waiting_;
  std::size_t unsent_ = 0;  ///< bytes that the transport has and may not have sent
  std::vector<Tag> held_;
  std::size_t bytes_since_look_ = 0;
  transport::Request control_;
  std::uint64_t control_word_ = 0;
};

}  // namespace onebit::nccl_net
