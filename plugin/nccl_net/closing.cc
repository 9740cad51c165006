#include "nccl_net/closing.h"

#include <algorithm>
#include <thread>

#include "base/deadline.h"

namespace onebit::nccl_net {

void Closing::add(std::unique_ptr<Comm> comm) {
  comm->finish();
  if (comm->closed()) return;
  const std::lock_guard lock(mutex_);
  comms_.push_back(std::move(comm));
}

void Closing::sweep() {
  std::vector<std::unique_ptr<Comm>> mine;
  {
    const std::lock_guard lock(mutex_);
    mine.swap(comms_);
  }
  std::erase_if(mine, [](const std::unique_ptr<Comm>& comm) { return comm->closed(); });
  const std::lock_guard lock(mutex_);
  for (std::unique_ptr<Comm>& comm : mine) comms_.push_back(std::move(comm));
}

bool Closing::empty() {
  const std::lock_guard lock(mutex_);
  return comms_.empty();
}

void Closing::drain(std::chrono::milliseconds limit) {
  for (const Deadline deadline = Deadline::after(limit);;) {
    sweep();
    if (empty()) return;
    if (deadline.passed()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const std::lock_guard lock(mutex_);
  comms_.clear();
}

}  // namespace onebit::nccl_net
