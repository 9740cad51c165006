// What the tests of verbs in the VM share. Threads: those of the test.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "transport/factory.h"
#include "transport_pair.h"

namespace onebit::transport::test {

/// Settings for the RDMA ports of this pattern.
inline Settings on(const std::string& hca) {
  Settings settings = test_settings();
  settings.ib_hca = hca;
  return settings;
}

inline void must(const std::string& command) {
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
}

/// Waits until the port is as wanted.
inline bool is_active(const std::string& hca, bool wanted) {
  const Deadline deadline = Deadline::after(std::chrono::seconds(20));
  while (find_devices("verbs", on(hca), SocketAddress()).ok() != wanted) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return true;
}

/// Pulls the cable of rxe1 until it is destroyed.
class PulledCable {
 public:
  PulledCable() { must("ip link set wire1 down"); }
  ~PulledCable() {
    must("ip link set wire1 up");
    EXPECT_TRUE(is_active("=rxe1", true));
  }
  PulledCable(const PulledCable&) = delete;
  PulledCable& operator=(const PulledCable&) = delete;
};

}  // namespace onebit::transport::test
