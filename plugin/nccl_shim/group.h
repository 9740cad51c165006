// What a thread has begun between ncclGroupStart and the outermost ncclGroupEnd: compressed calls and new
// communicators wait here until NCCL's own group is over, and then run together. A thread's own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "communicator.h"

namespace onebit::shim {

struct QueuedCall {
  std::shared_ptr<Communicator> communicator;
  Arguments arguments;
  std::string tag;
};

/// A communicator that NCCL has been asked to make; the handle may be there only when the group ends.
struct NewCommunicator {
  const RealNccl* real;
  nccl::Comm* handle;
  Communicator::Making making;
};

class Group {
 public:
  /// The calling thread's.
  static Group& current();

  void start() { ++depth_; }
  /// After NCCL's group has ended with `result`.
  nccl::Result end(nccl::Result result);
  /// Now, or when the group ends.
  nccl::Result run(QueuedCall call);
  nccl::Result take_over(std::vector<NewCommunicator> made);

 private:
  int depth_ = 0;
  std::vector<QueuedCall> calls_;
  std::vector<NewCommunicator> made_;
};

}  // namespace onebit::shim
