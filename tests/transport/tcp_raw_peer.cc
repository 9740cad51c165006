#include "tcp_raw_peer.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>

#include "transport_pair.h"

namespace onebit::transport::test {

using std::chrono::milliseconds;

UniqueSocket raw_connect(const Handle& handle) {
  auto contents = decode_handle(handle);
  EXPECT_TRUE(contents.ok());
  auto fd = start_connect(contents->address, SocketAddress());
  EXPECT_TRUE(fd.ok()) << fd.status().message();
  if (!fd.ok()) return UniqueSocket();
  pollfd entry{fd->get(), POLLOUT, 0};
  while (::poll(&entry, 1, 10'000) < 0 && errno == EINTR) {
  }
  EXPECT_EQ(connect_error(fd->get()), 0);
  return std::move(*fd);
}

void raw_send(int fd, std::span<const std::byte> bytes) {
  [[maybe_unused]] const ssize_t ignored =
      ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void raw_send(int fd, const std::string& text) {
  raw_send(fd, std::as_bytes(std::span(text)));
}

void raw_reset(UniqueSocket& fd) {
  const linger hard{1, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  fd.reset();
}

bool raw_closed(int fd, Context& context) {
  return drive(
      {&context},
      [&] {
        std::byte byte;
        const ssize_t got = ::recv(fd, &byte, 1, MSG_DONTWAIT);
        return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
      },
      std::chrono::seconds(10));
}

RawPeer::RawPeer(Context& context, std::size_t flows) {
  using bootstrap::Handshake;
  auto listening = context.listen(0);
  EXPECT_TRUE(listening.ok());
  listener = std::move(*listening);
  const auto contents = decode_handle(listener->handle());
  std::vector<Handshake> shakes;
  FlowOpening opening;
  opening.endpoint_id = 42;
  opening.count = static_cast<std::uint16_t>(flows);
  for (std::size_t i = 0; i < flows; ++i) {
    sockets.push_back(raw_connect(listener->handle()));
    opening.index = static_cast<std::uint16_t>(i);
    shakes.emplace_back(sockets.back().get(), bootstrap::Role::kClient, contents->key,
                        bootstrap::Purpose::kTransport, encode_opening(opening));
  }
  EXPECT_TRUE(drive({&context}, [&] {
    for (Handshake& shake : shakes) {
      const auto step = shake.advance();
      EXPECT_TRUE(step.ok()) << step.status().message();
    }
    auto accepted = listener->accept();
    if (accepted.ok() && *accepted) endpoint = std::move(*accepted);
    return endpoint != nullptr;
  }));
  for (Handshake& shake : shakes) {
    const auto step = shake.advance();
    EXPECT_TRUE(step.ok() && *step == Handshake::Step::kDone);
  }
}

std::vector<std::byte> segment(const SegmentHeader& header, std::span<const std::byte> payload) {
  std::vector<std::byte> bytes(kHeaderBytes + payload.size());
  encode_header(header, bytes.data());
  std::copy(payload.begin(), payload.end(), bytes.begin() + kHeaderBytes);
  return bytes;
}

}  // namespace onebit::transport::test
