#include "transport_pair.h"

#include <atomic>
#include <cstdlib>

#include "transport/factory.h"
#include "transport/tcp/tcp.h"
#include "transport/verbs/verbs.h"
#ifdef ONEBIT_WITH_UCX
#include "transport/ucx/ucx.h"
#endif

namespace onebit::transport::test {

using std::chrono::milliseconds;

Settings test_settings() {
  Settings settings;
  settings.socket_ifname = "=lo";
  settings.init_timeout = milliseconds(20'000);
  return settings;
}

Variant tcp_variant(const std::string& name, std::uint32_t flows,
                    const std::function<void(Settings&)>& change) {
  Variant variant;
  variant.name = name;
  variant.make = [](const Settings& settings) { return make_tcp_context(settings, SocketAddress()); };
  variant.settings = test_settings();
  variant.settings.tcp_flows = flows;
  if (change) change(variant.settings);
  return variant;
}

namespace {

using Maker = std::function<Result<std::unique_ptr<Context>>(const Settings&)>;

/// Every other context is on `first`.
Maker on_devices_in_turn(const std::string& first, const std::string& second, const Maker& make) {
  return [first, second, make](const Settings& settings) {
    static std::atomic<unsigned> made{0};
    Settings own = settings;
    own.ib_hca = made++ % 2 == 0 ? first : second;
    return make(own);
  };
}

/// With what the job may say to UCX.
Maker over_networks(const std::string& networks, const Maker& make) {
  return [networks, make](const Settings& settings) {
    ::setenv("UCX_TLS", networks.c_str(), 1);
    ::setenv("UCX_NET_DEVICES", "lo", 1);
    return make(settings);
  };
}

Maker chosen(const char* transport) {
  return [transport](const Settings& settings) { return make_context(transport, settings, SocketAddress()); };
}

}  // namespace

Variant verbs_variant(const std::string& name, const std::function<void(Settings&)>& change,
                      const std::string& first, const std::string& second) {
  Variant variant;
  variant.name = name;
  variant.make = on_devices_in_turn(first, second, chosen("verbs"));
  variant.settings = test_settings();
  if (change) change(variant.settings);
  return variant;
}

Variant ucx_variant(const std::string& name, const std::string& networks) {
  Variant variant;
  variant.name = name;
  variant.make = over_networks(networks, chosen("ucx"));
  variant.settings = test_settings();
  return variant;
}

std::vector<Variant> all_variants() {
  if (std::getenv("ONEBIT_RDMA_VM") != nullptr) {
    return {verbs_variant("verbs"), verbs_variant("verbs_4_pairs", [](Settings& s) { s.ib_pairs = 4; }),
            verbs_variant("verbs_2_ports", {}, "=rxe0,rxe1", "=rxe1,rxe0")};
  }
  std::vector<Variant> variants{
      tcp_variant("tcp_1_flow", 1),
      tcp_variant("tcp_2_flows", 2),
      tcp_variant("tcp_4_flows", 4),
      tcp_variant("tcp_7_flows", 7),
      tcp_variant("tcp_small_send_buffer", 2, [](Settings& s) { s.tcp_sndbuf = 4096; }),
      tcp_variant("tcp_zerocopy_2_flows", 2, [](Settings& s) { s.tcp_zerocopy = 4096; }),
      tcp_variant("tcp_zerocopy_small_send_buffer", 1, [](Settings& s) {
        s.tcp_zerocopy = 1;
        s.tcp_sndbuf = 4096;
      })};
#ifdef ONEBIT_WITH_UCX
  variants.push_back(ucx_variant("ucx_tcp", "tcp,self"));
  variants.push_back(ucx_variant("ucx_shared_memory", "shm,self"));
#endif
  return variants;
}

std::vector<ControlledVariant> controlled_variants() {
  if (std::getenv("ONEBIT_RDMA_VM") != nullptr) {
    const auto make_smallest = [](const Settings& settings) -> Result<std::unique_ptr<Context>> {
      ONEBIT_ASSIGN_OR_RETURN(auto devices, verbs_devices(settings, SocketAddress()));
      return make_verbs_context(settings, std::move(devices), {1, 128, 1, 1, 1000});
    };
    return {{verbs_variant("verbs"), std::byte{0x80}, on_devices_in_turn("=rxe0", "=rxe1", make_smallest),
             64UL << 20}};
  }
  std::vector<ControlledVariant> variants;
#ifdef ONEBIT_WITH_UCX
  for (const auto& [name, networks] :
       {std::pair("ucx_tcp", "tcp,self"), std::pair("ucx_shared_memory", "shm,self")}) {
    const auto make_smallest = [](const Settings& settings) -> Result<std::unique_ptr<Context>> {
      ONEBIT_ASSIGN_OR_RETURN(auto devices, ucx_devices(settings, SocketAddress()));
      return make_ucx_context(settings, std::move(devices), {1, 1000});
    };
    variants.push_back(
        {ucx_variant(name, networks), std::byte{0xC0}, over_networks(networks, make_smallest), 1UL << 30});
  }
#endif
  return variants;
}

std::unique_ptr<Context> make(const Variant& variant) {
  auto made = variant.make(variant.settings);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.ok() ? std::move(*made) : nullptr;
}

Status progress(Context& context, milliseconds timeout) {
  std::vector<Request*> completed;
  return context.progress(timeout, completed);
}

bool drive(const std::vector<Context*>& contexts, const std::function<bool()>& done, milliseconds limit) {
  const Deadline deadline = Deadline::after(limit);
  while (!done()) {
    if (deadline.passed()) return false;
    for (Context* context : contexts) {
      // With several contexts none may wait, since the others need this thread.
      const Status status = progress(*context, milliseconds(contexts.size() == 1 ? 1 : 0));
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }
  return true;
}

Pair::Pair(const Variant& variant, std::span<const std::byte> hello)
    : context_a(make(variant)), context_b(make(variant)) {
  auto listening = context_b->listen(0);
  EXPECT_TRUE(listening.ok()) << listening.status().message();
  if (!listening.ok()) return;
  listener = std::move(*listening);
  auto connecting = context_a->connect(0, listener->handle(), hello);
  EXPECT_TRUE(connecting.ok()) << connecting.status().message();
  if (!connecting.ok()) return;
  a = std::move(*connecting);
  drive([&] {
    if (!b) {
      auto accepted = listener->accept();
      EXPECT_TRUE(accepted.ok()) << accepted.status().message();
      if (accepted.ok()) b = std::move(*accepted);
    }
    return connected() || a->state() == Endpoint::State::kFailed;
  });
  EXPECT_TRUE(connected()) << a->status().message();
}

void expect_exchange(Pair& pair, std::size_t bytes) {
  const auto sent = pattern(bytes, 3);
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
