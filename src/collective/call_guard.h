// Admits one thread at a time into a communicator and refuses the second, and keeps forked children out.
#pragma once

#include "collective/communicator.h"

namespace onebit::collective {

class Communicator::CallGuard {
 public:
  /// `also_broken`: a failure of the communicator is no reason to refuse.
  explicit CallGuard(Communicator& communicator, bool also_broken = false) : communicator_(communicator) {
    status_ = also_broken ? communicator.in_own_process() : communicator.usable();
    if (!status_.ok()) return;
    entered_ = !communicator.in_call_.exchange(true, std::memory_order_acquire);
    if (!entered_) {
      status_ =
          Status::error(Code::kInvalidUsage,
                        "another thread is in a call on communicator '{}'; one thread at a time may use it",
                        communicator.name_);
    }
  }
  ~CallGuard() {
    if (entered_) communicator_.in_call_.store(false, std::memory_order_release);
  }
  CallGuard(const CallGuard&) = delete;
  CallGuard& operator=(const CallGuard&) = delete;
  const Status& status() const { return status_; }

 private:
  Communicator& communicator_;
  Status status_;
  bool entered_ = false;
};

}  // namespace onebit::collective
