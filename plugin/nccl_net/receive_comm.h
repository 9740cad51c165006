// The receiving end: a pool of multi-receives, and messages that came before their receive was posted.
//
// The transport delivers messages in order: one that no posted receive matches would keep back all behind it,
// also those that posted receives wait for. With several senders behind one connection (NCCL's tags) that may
// happen, and NCCL may post the missing receive only after the others have ended. So such a message is taken
// into a buffer, and the sending end is asked to hold further ones of its tag until the receive is posted:
// what is buffered is what was under way. Where each message finds its receive, nothing of this happens. Nor
// does it where messages may lie in the memory of GPUs: there each connection has one sender.
//
// The k-th message of a tag goes to the k-th posted receive of that tag, within and across multi-receives.
// Threads: those of Comm.
#pragma once

#include <array>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "nccl_net/comm.h"

namespace onebit::nccl_net {

class ReceiveComm final : public Comm {
 public:
  /// One message of a multi-receive.
  struct Wanted {
    void* data;
    std::size_t capacity;
    Tag tag;
    transport::Memory* memory;  ///< may be null; else it is there until the request has ended
  };

  explicit ReceiveComm(Line line);
  ~ReceiveComm() override;

  /// Posts 1 to kMaxReceives receives as one request; null for "try again later".
  Result<Operation*> receive(std::span<const Wanted> wanted);
  /// What is received at `data` is there for a GPU to see when it has ended; null where there is nothing to
  /// wait for. One request, of which `test` gives no sizes.
  Result<Operation*> flush(const void* data, std::size_t bytes, transport::Memory* memory);
  Status test(Operation& operation, bool& done, int* sizes) override;

 private:
  /// A message without a receive of NCCL's.
  struct Early {
    Tag tag = 0;
    std::unique_ptr<std::byte[]> data;
    transport::Request request;
  };
  struct Part {
    Wanted wanted{};
    transport::Request request;
    std::unique_ptr<Early> early;  ///< the message, if it came before
    transport::Request& source() { return early ? early->request : request; }
  };
  struct Receive : Operation {
    std::size_t count = 0;
    std::array<Part, kMaxReceives> parts;
    Receive* next_free = nullptr;
  };

  bool idle() const override { return in_flight_ == 0; }
  Status post(Part& part);
  std::unique_ptr<Early> take_early(Tag tag) noexcept;
  Status buffer(const transport::WaitingMessage& message);
  Status say(std::uint64_t kind, Tag tag);
  Status advance();
  static transport::Request::State state_of(Receive& receive) noexcept;

  std::vector<Receive> receives_;
  Receive* free_ = nullptr;
  std::size_t in_flight_ = 0;
  std::list<std::unique_ptr<Early>> early_;  ///< in order of arrival
  std::vector<Tag> held_;                    ///< of which the sender was asked to send no more
  std::list<transport::Request> said_;
};

}  // namespace onebit::nccl_net
