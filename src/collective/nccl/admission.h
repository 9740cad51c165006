// Whether all ranks have the memory for what a job calls. One thread at a time a communicator.
#pragma once

#include <span>

#include "collective/nccl/nccl_communicator.h"

namespace onebit::nccl {

/// Requests in their order, for each communicator on its own.
using RequestQueues = std::map<NcclCommunicator*, std::vector<Request*>>;

class Admission {
 public:
  /// Makes memory for the shapes and batches that come for the first time; the ranks tell each other whether
  /// they have it, which waits for the streams. Sets each request's `compressed`.
  static Result admit(std::span<Request> requests);
  /// Those that are compressed.
  static RequestQueues queues(std::span<Request> requests);

 private:
  struct Question;
  static Result ask(std::span<const Question> questions);
  static Result admit_shapes(std::span<Request> requests);
  static Result admit_batches(std::span<Request> requests);
};

}  // namespace onebit::nccl
