#include "cuda_cpu/runtime/stream.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "cuda_cpu/engine/options.h"
#include "cuda_cpu/engine/sanitizers.h"
#include "cuda_cpu/runtime/thread_state.h"

namespace onebit::cuda_cpu {

std::shared_ptr<Stream> Stream::start(int device, unsigned flags, bool legacy) {
  const Unobserved quiet;
  const std::shared_ptr<Stream> stream(new Stream(device, flags, legacy));
  // The program's signals are not for the workers: they inherit a mask that blocks all.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([stream] { stream->run(); }).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return stream;
}

OperationPointer Stream::append(Work work) {
  const Unobserved quiet;
  auto operation = std::make_shared<Operation>();
  operation->work = std::move(work);
  release(&operation->before);
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(operation);
    last_ = operation;
  }
  gate_.notify();
  return operation;
}

OperationPointer Stream::last() {
  const std::lock_guard lock(mutex_);
  return last_;
}

void Stream::wait(const OperationPointer& operation) {
  if (operation == nullptr) return;
  gate_.wait([&] { return operation->done.load(); });
  acquire(&operation->after);
}

void Stream::retire(Work after_last) {
  const Unobserved quiet;
  {
    const std::lock_guard lock(mutex_);
    retired_ = true;
    after_last_ = std::move(after_last);
  }
  gate_.notify();
}

std::shared_ptr<Capture> Stream::capture() {
  const std::lock_guard lock(mutex_);
  return capture_;
}

void Stream::set_capture(std::shared_ptr<Capture> capture) {
  const Unobserved quiet;
  const std::lock_guard lock(mutex_);
  capture_ = std::move(capture);
}

OperationPointer Stream::next() {
  const Unobserved quiet;
  OperationPointer operation;
  gate_.wait([&] {
    const std::lock_guard lock(mutex_);
    if (queue_.empty()) return retired_;
    operation = std::move(queue_.front());
    queue_.pop_front();
    return true;
  });
  return operation;
}

void Stream::finish(OperationPointer operation) {
  const Unobserved quiet;
  operation->work = nullptr;  // what it holds goes before the host sees it done
  release(&operation->after);
  operation->done = true;
  gate_.notify();
}

void Stream::run() {
  thread_state().device = device_;
  while (OperationPointer operation = next()) {
    if (runtime_options().delay_us > 0) ::usleep(runtime_options().delay_us);
    acquire(&operation->before);
    operation->work();
    finish(std::move(operation));
  }
  after_last_();
}

}  // namespace onebit::cuda_cpu
