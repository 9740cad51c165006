// Requests in order, linked by Request::next: a list that allocates nothing. Threads: those of its owner.
#pragma once

#include "transport/transport.h"

namespace onebit::transport {

class RequestList {
 public:
  bool empty() const noexcept { return first_ == nullptr; }
  Request* first() const noexcept { return first_; }
  void push(Request& request) noexcept {
    request.next = nullptr;
    (last_ != nullptr ? last_->next : first_) = &request;
    last_ = &request;
  }
  /// `previous` is the one before it; null for the first.
  void remove(Request& request, Request* previous) noexcept {
    (previous != nullptr ? previous->next : first_) = request.next;
    if (last_ == &request) last_ = previous;
    request.next = nullptr;
  }
  Request* pop() noexcept {
    Request* const request = first_;
    if (request != nullptr) remove(*request, nullptr);
    return request;
  }

 private:
  Request* first_ = nullptr;
  Request* last_ = nullptr;
};

}  // namespace onebit::transport
