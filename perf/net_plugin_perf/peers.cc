#include "peers.h"

#include <netinet/tcp.h>
#include <poll.h>

#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/deadline.h"

namespace onebit::perf {
namespace {

using nccl_net::abi::Result;
constexpr std::chrono::seconds kSilence{60};

Status wait_for(int fd, short events) {
  const Deadline deadline = Deadline::after(kSilence);
  pollfd entry{fd, events, 0};
  while (::poll(&entry, 1, deadline.poll_timeout()) < 0 && errno == EINTR) {
  }
  return entry.revents != 0 ? Status() : Status(Code::kTimeout, "the other side has said nothing for 60 s");
}

Status check(Result result, const char* call) {
  if (result == Result::kSuccess) return Status();
  return Status::error(Code::kSystemError,
                       "the plugin's {} failed with {} (its log says why: NCCL_DEBUG=INFO)", call,
                       static_cast<int>(result));
}

void log_line(int level, unsigned long /*subsystems*/, const char* /*file*/, int /*line*/, const char* format,
              ...) __attribute__((format(printf, 5, 6)));
void log_line(int level, unsigned long /*subsystems*/, const char* /*file*/, int /*line*/, const char* format,
              ...) {
  static const bool verbose = std::getenv("NCCL_DEBUG") != nullptr;
  if (level != nccl_net::abi::kLogWarn && !(verbose && level == nccl_net::abi::kLogInfo)) return;
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
}

}  // namespace

onebit::Result<Plain> Plain::listen(std::uint16_t port) {
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(port);
  ONEBIT_ASSIGN_OR_RETURN(const UniqueSocket listener,
                          listen_on(SocketAddress(reinterpret_cast<const sockaddr*>(&any), sizeof any), {}));
  for (;;) {
    ONEBIT_RETURN_IF_ERROR(wait_for(listener.get(), POLLIN));
    ONEBIT_ASSIGN_OR_RETURN(UniqueSocket made, accept_from(listener.get(), nullptr));
    if (!made) continue;
    ONEBIT_RETURN_IF_ERROR(tune_tcp(made.get(), kSilence, 0, 0));
    return Plain(std::move(made));
  }
}

onebit::Result<Plain> Plain::connect(const std::string& host, std::uint16_t port) {
  ONEBIT_ASSIGN_OR_RETURN(const auto addresses, resolve(host, port, SocketFamily::kIPv4));
  for (const Deadline deadline = Deadline::after(std::chrono::seconds(10));;) {
    ONEBIT_ASSIGN_OR_RETURN(UniqueSocket made, start_connect(addresses[0], {}));
    ONEBIT_RETURN_IF_ERROR(wait_for(made.get(), POLLOUT));
    const int error = connect_error(made.get());
    if (error == 0) {
      ONEBIT_RETURN_IF_ERROR(tune_tcp(made.get(), kSilence, 0, 0));
      return Plain(std::move(made));
    }
    if (deadline.passed()) return Status::system(error, formatted("connect to {}", addresses[0].to_string()));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

Status Plain::send(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (put < 0 && errno != EAGAIN && errno != EINTR) return Status::system(errno, "plain connection");
    if (put < 0) {
      ONEBIT_RETURN_IF_ERROR(wait_for(socket_.get(), POLLOUT));
    } else {
      bytes = bytes.subspan(static_cast<std::size_t>(put));
    }
  }
  return Status();
}

Status Plain::receive(std::span<std::byte> bytes, bool spin) {
  while (!bytes.empty()) {
    const ssize_t got = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
    if (got == 0) return Status(Code::kRemoteError, "the other side has gone");
    if (got < 0 && errno != EAGAIN && errno != EINTR) return Status::system(errno, "plain connection");
    if (got < 0 && !spin) ONEBIT_RETURN_IF_ERROR(wait_for(socket_.get(), POLLIN));
    if (got < 0 && spin) std::this_thread::yield();
    if (got > 0) bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return Status();
}

Status Plain::meet() {
  std::byte value{1};
  ONEBIT_RETURN_IF_ERROR(send_value(value));
  return receive_value(value);
}

onebit::Result<Comms> Comms::make(const nccl_net::Net& net, int device, Plain& plain,
                                  std::chrono::microseconds pause) {
  Comms made(net, pause);
  ONEBIT_RETURN_IF_ERROR(check(net.init(&made.ctx_, &log_line), "init"));
  int devices = 0;
  ONEBIT_RETURN_IF_ERROR(check(net.devices(devices), "devices"));
  if (device < 0 || device >= devices) {
    return Status::error(Code::kInvalidArgument, "device {}, and the plugin has {}", device, devices);
  }
  using Handle = std::array<std::byte, nccl_net::abi::kHandleBytes>;
  Handle mine{}, theirs{};
  void* listening = nullptr;
  ONEBIT_RETURN_IF_ERROR(check(net.listen(made.ctx_, device, mine.data(), &listening), "listen"));
  ONEBIT_RETURN_IF_ERROR(plain.send_value(mine));
  ONEBIT_RETURN_IF_ERROR(plain.receive_value(theirs));
  for (const Deadline deadline = Deadline::after(kSilence);
       made.send_ == nullptr || made.receive_ == nullptr;) {
    if (deadline.passed()) return Status(Code::kTimeout, "the two ends are not connected after 60 s");
    if (made.send_ == nullptr) {
      ONEBIT_RETURN_IF_ERROR(check(net.connect(made.ctx_, device, theirs.data(), &made.send_), "connect"));
    }
    if (made.receive_ == nullptr) {
      ONEBIT_RETURN_IF_ERROR(check(net.accept(listening, &made.receive_), "accept"));
    }
  }
  ONEBIT_RETURN_IF_ERROR(check(net.close_listen(listening), "closeListen"));
  return made;
}

Comms::~Comms() {
  if (send_ != nullptr) static_cast<void>(net_->close_send(send_));
  if (receive_ != nullptr) static_cast<void>(net_->close_receive(receive_));
  if (ctx_ != nullptr) static_cast<void>(net_->finalize(ctx_));
}

Status Comms::send(const void* data, std::size_t bytes, void*& request) {
  return check(net_->isend(send_, const_cast<void*>(data), bytes, 0, nullptr, &request), "isend");
}

Status Comms::receive(void* data, std::size_t bytes, void*& request) {
  int tag = 0;
  void* mhandle = nullptr;
  return check(net_->irecv(receive_, {&data, 1}, {&bytes, 1}, {&tag, 1}, {&mhandle, 1}, &request), "irecv");
}

Status Comms::test(void* request, bool& done, int& size) {
  int ended = 0;
  ONEBIT_RETURN_IF_ERROR(check(net_->test(request, &ended, &size), "test"));
  done = ended != 0;
  if (done) return Status();
  if (pause_.count() > 0) {
    std::this_thread::sleep_for(pause_);
  } else {
    std::this_thread::yield();
  }
  return Status();
}

Status Comms::finish(void* request) {
  int size = 0;
  for (bool done = false; !done;) ONEBIT_RETURN_IF_ERROR(test(request, done, size));
  return Status();
}

Status Comms::send_now(const void* data, std::size_t bytes) {
  void* request = nullptr;
  while (request == nullptr) ONEBIT_RETURN_IF_ERROR(send(data, bytes, request));
  return finish(request);
}

Status Comms::receive_now(void* data, std::size_t bytes) {
  void* request = nullptr;
  while (request == nullptr) ONEBIT_RETURN_IF_ERROR(receive(data, bytes, request));
  return finish(request);
}

}  // namespace onebit::perf
