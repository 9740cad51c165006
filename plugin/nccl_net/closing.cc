#include "nccl_net/closing.h"

#include <algorithm>
#include <iterator>
#include <thread>

#include "base/deadline.h"

namespace onebit::nccl_net {

namespace {
constexpr std::size_t kAFew = 4;
}

void Closing::add(std::unique_ptr<Comm> comm) {
  sweep(kAFew);
  comm->finish();
  if (comm->closed()) return;
  const std::lock_guard lock(mutex_);
  comms_.push_back(std::move(comm));
}

void Closing::sweep(std::size_t most) {
  std::vector<std::unique_ptr<Comm>> mine;
  {
    const std::lock_guard lock(mutex_);
    const auto end = comms_.begin() + static_cast<std::ptrdiff_t>(std::min(most, comms_.size()));
    mine.assign(std::move_iterator(comms_.begin()), std::move_iterator(end));
    comms_.erase(comms_.begin(), end);
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
