// What the tests of verbs in the VM share. Threads: those of the test.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "transport_pair.h"

namespace onebit::transport::test {

/// Settings for the RDMA ports of this pattern.
inline Settings on(const std::string& hca) {
  Settings settings = test_settings();
  settings.ib_hca = hca;
  return settings;
}

/// A message goes from one end to the other.
inline void expect_exchange(Pair& pair) {
  const auto sent = pattern(100'000, 3);
  std::vector<std::byte> received(sent.size());
  Request send;
  Request receive;
  ASSERT_TRUE(pair.b->receive(receive, received.data(), received.size(), 1, 0).ok());
  ASSERT_TRUE(pair.a->send(send, sent.data(), sent.size(), 1, 0).ok());
  ASSERT_TRUE(pair.drive([&] { return has_ended(send) && has_ended(receive); }));
  ASSERT_TRUE(is_done(send) && is_done(receive)) << pair.a->status().message() << pair.b->status().message();
  EXPECT_EQ(received, sent);
}

}  // namespace onebit::transport::test
