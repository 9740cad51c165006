#include "transport/poller.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

namespace onebit::transport {

Source::~Source() {
  if (queued_in_ != nullptr) queued_in_->unlink(*this);
}

Poller::~Poller() {
  while (first_ != nullptr) unlink(*first_);
}

Status Poller::open() {
  epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return Status::system(errno, "epoll_create1");
  event_.reset(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!event_) return Status::system(errno, "eventfd");
  epoll_event event{};
  event.events = EPOLLIN;  // level-triggered: a wake is never lost
  event.data.ptr = nullptr;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, event_.get(), &event) != 0) {
    return Status::system(errno, "epoll_ctl");
  }
  return Status();
}

Status Poller::add(int fd, Source& source) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.ptr = &source;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return Status();
  return Status::system(errno, "epoll_ctl: add a socket");
}

void Poller::remove(int fd) noexcept {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void Poller::enqueue(Source& source) noexcept {
  if (source.queued_in_ != nullptr) return;
  source.queued_in_ = this;
  source.previous_ = last_;
  source.next_ = nullptr;
  (last_ != nullptr ? last_->next_ : first_) = &source;
  last_ = &source;
  announce();
}

void Poller::watch() noexcept {
  if (watched_) return;
  watched_ = true;
  announce();  // of what may have come up before
}

void Poller::leave() noexcept {
  inside_ = false;
  if (has_ready()) announce();
}

void Poller::unlink(Source& source) noexcept {
  if (end_of_round_ == &source) end_of_round_ = source.previous_;
  (source.previous_ != nullptr ? source.previous_->next_ : first_) = source.next_;
  (source.next_ != nullptr ? source.next_->previous_ : last_) = source.previous_;
  source.queued_in_ = nullptr;
  source.previous_ = source.next_ = nullptr;
}

Result<Poller::Wait> Poller::wait(int timeout_ms) {
  const int count = epoll_wait(epoll_.get(), events_.data(), static_cast<int>(events_.size()), timeout_ms);
  if (count < 0) {
    if (errno == EINTR) return Wait::kNothing;
    return Status::system(errno, "epoll_wait");
  }
  bool woken = false;
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events_[static_cast<std::size_t>(i)];
    if (event.data.ptr == nullptr) {
      woken = read_wakes();
      continue;
    }
    Source& source = *static_cast<Source*>(event.data.ptr);
    if ((event.events & EPOLLOUT) != 0) source.writable = true;
    if ((event.events & EPOLLIN) != 0) source.readable = true;
    if ((event.events & EPOLLERR) != 0 && source.wants_reports) source.has_reports = source.readable = true;
    const std::uint32_t ends = EPOLLRDHUP | EPOLLHUP | (source.wants_reports ? 0U : EPOLLERR);
    if ((event.events & ends) != 0) source.hung_up = source.readable = true;
    enqueue(source);
  }
  if (woken) return Wait::kWoken;
  return count > 0 ? Wait::kEvents : Wait::kNothing;
}

void Poller::run_ready() {
  // The end of the round is kept as an element, since any element may go away, be taken out or be added.
  end_of_round_ = last_;
  while (first_ != nullptr && end_of_round_ != nullptr) {
    Source& source = *first_;
    const bool last = &source == end_of_round_;
    unlink(source);
    if (last) end_of_round_ = nullptr;
    source.on_ready();
  }
  end_of_round_ = nullptr;
}

void Poller::wake() noexcept {
  const int saved = errno;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t ignored = ::write(event_.get(), &one, sizeof one);
  errno = saved;
}

void Poller::signal_ready() noexcept {
  if (own_signals_ != 0) return;
  own_signals_ = 1;
  wake();
}

bool Poller::read_wakes() noexcept {
  std::uint64_t count = 0;
  if (::read(event_.get(), &count, sizeof count) != sizeof count) return false;
  const bool foreign = count > own_signals_;
  own_signals_ = 0;
  return foreign;
}

}  // namespace onebit::transport
