// Two connected endpoints for tests, over the abstract Context: every transport runs through the same tests.
//
// Both ends live in one thread, on contexts of their own; `drive` moves both until a condition holds.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/pattern.h"
#include "transport/transport.h"

namespace onebit::transport::test {

/// A transport with settings: the parameter of the suite.
struct Variant {
  std::string name;
  std::function<Result<std::unique_ptr<Context>>(const Settings&)> make;
  Settings settings;
};
inline std::ostream& operator<<(std::ostream& out, const Variant& variant) {
  return out << variant.name;
}

/// Settings of tests: loopback, short times.
Settings test_settings();
Variant tcp_variant(const std::string& name, std::uint32_t flows,
                    const std::function<void(Settings&)>& change = {});

/// A variant of verbs, on the RDMA devices of the VM (tests/rdma/vm); every other context is on `first`.
Variant verbs_variant(const std::string& name, const std::function<void(Settings&)>& change = {},
                      const std::string& first = "=rxe0", const std::string& second = "=rxe1");

/// A variant of UCX over what UCX_TLS names, on loopback. Where the build has UCX.
Variant ucx_variant(const std::string& name, const std::string& networks);

/// All that the suites of the contract run: a further transport adds its variants here. In the VM, those of
/// verbs.
std::vector<Variant> all_variants();

/// A transport whose connections have one of TCP beside them.
struct ControlledVariant {
  Variant variant;
  std::byte mark;  ///< makes handles of TCP its own, by XOR with their first byte
  /// As `variant.make`, with the shortest queues.
  std::function<Result<std::unique_ptr<Context>>(const Settings&)> make_smallest;
  std::size_t slow_bytes;  ///< of a message that is on its way for a while
};
inline std::ostream& operator<<(std::ostream& out, const ControlledVariant& controlled) {
  return out << controlled.variant;
}
/// All of those, as all_variants; none where the build has no UCX.
std::vector<ControlledVariant> controlled_variants();

std::unique_ptr<Context> make(const Variant& variant);

/// Moves the contexts until `done`, at most for `limit`. False when time is up.
bool drive(const std::vector<Context*>& contexts, const std::function<bool()>& done,
           std::chrono::milliseconds limit = std::chrono::seconds(30));
/// Calls progress of one context once, without a list to keep.
Status progress(Context& context, std::chrono::milliseconds timeout = std::chrono::milliseconds(0));

using onebit::testing::pattern;

struct Pair {
  explicit Pair(const Variant& variant, std::span<const std::byte> hello = {});
  /// Both in kReady and accepted.
  bool connected() const { return a && b && a->state() == Endpoint::State::kReady; }
  bool drive(const std::function<bool()>& done,
             std::chrono::milliseconds limit = std::chrono::seconds(30)) const {
    return test::drive({context_a.get(), context_b.get()}, done, limit);
  }

  std::unique_ptr<Context> context_a;
  std::unique_ptr<Context> context_b;
  std::unique_ptr<Listener> listener;  ///< of b
  std::unique_ptr<Endpoint> a;         ///< connected
  std::unique_ptr<Endpoint> b;         ///< accepted
};

inline bool is_done(const Request& request) {
  return request.state == Request::State::kDone;
}
inline bool is_failed(const Request& request) {
  return request.state == Request::State::kFailed;
}
inline bool has_ended(const Request& request) {
  return is_done(request) || is_failed(request);
}

/// A message goes from one end to the other.
void expect_exchange(Pair& pair, std::size_t bytes = 100'000);

}  // namespace onebit::transport::test
