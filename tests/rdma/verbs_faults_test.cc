// What verbs does when something is wrong with its own: devices, wires, queue pairs, locked memory. On the
// two devices of the VM (vm).
//
// Each test leaves the devices as it found them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <string>

#include "transport/controlled_wire.h"
#include "transport/factory.h"
#include "transport/tcp/tcp.h"
#include "transport/verbs/verbs.h"
#include "transport/verbs/verbs_queues.h"
#include "transport_pair.h"
#include "verbs_support.h"

namespace onebit::transport::test {
namespace {

using State = Endpoint::State;
using ::testing::HasSubstr;

/// A handle of TCP made one of verbs, and back.
Handle marked(Handle handle) {
  handle.bytes[0] ^= std::byte{0x80};
  return handle;
}

Variant impatient() {
  return verbs_variant("", [](Settings& s) {
    s.ib_timeout = 12;  // 17 ms
    s.ib_retries = 3;
  });
}

/// Runs `body` in a child; what it returns comes back as text.
std::string in_child(const std::function<std::string()>& body) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string text = body();
    const ssize_t written = ::write(ends[1], text.data(), text.size());
    ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text(4096, '\0');
  std::size_t have = 0;
  for (ssize_t got = 1; got > 0 && have<text.size(); have += got> 0 ? static_cast<std::size_t>(got) : 0) {
    got = ::read(ends[0], text.data() + have, text.size() - have);
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  text.resize(have);
  return text;
}

TEST(VerbsFaults, ADeviceThatThereIsNotIsAnErrorThatListsThoseThereAre) {
  const auto context = make_context("verbs", on("=mlx5_0"), SocketAddress());
  EXPECT_THAT(context.status().message(),
              AllOf(HasSubstr("ONEBIT_IB_HCA==mlx5_0"), HasSubstr("rxe0:1 (active), rxe1:1 (active)")));
}

TEST(VerbsFaults, AWrongGidIndexIsAnErrorThatListsTheRightOnes) {
  Settings settings = on("=rxe0");
  settings.ib_gid_index = 77;
  const auto context = make_context("verbs", settings, SocketAddress());
  EXPECT_THAT(context.status().message(),
              AllOf(HasSubstr("rxe0:1"), HasSubstr("ONEBIT_IB_GID_INDEX"), HasSubstr("10.77.0.1")));
}

TEST(VerbsFaults, EveryGidIndexThatThereIsCarriesMessages) {
  for (int index = 0; index < 3; ++index) {
    SCOPED_TRACE(index);
    Pair pair(verbs_variant("", [&](Settings& s) { s.ib_gid_index = index; }));
    ASSERT_TRUE(pair.connected());
    expect_exchange(pair);
  }
}

TEST(VerbsFaults, APortThatIsDownIsNotChosen) {
  const PulledCable pulled;
  ASSERT_TRUE(is_active("=rxe1", false));
  EXPECT_THAT(make_context("verbs", on("=rxe1"), SocketAddress()).status().message(),
              HasSubstr("rxe1:1 (down)"));
  Settings automatic = on("=rxe1");
  automatic.transport = "auto";
  const auto choice = choose(automatic);
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->transport, "tcp");
  EXPECT_THAT(choice->why, HasSubstr("rxe1:1 (down)"));
}

TEST(VerbsFaults, AWireThatGoesDownInTheMiddleEndsAllRequestsOfBothEnds) {
  Pair pair(impatient());
  ASSERT_TRUE(pair.connected());
  const auto sent = pattern(32UL << 20, 1);
  std::vector<std::byte> received(sent.size());
  std::array<Request, 4> requests;
  ASSERT_TRUE(pair.b->receive(requests[0], received.data(), received.size(), 1, 0).ok());
  ASSERT_TRUE(pair.b->receive(requests[1], received.data(), 8, 2, 0).ok());
  ASSERT_TRUE(pair.a->send(requests[2], sent.data(), sent.size(), 1, 0).ok());
  ASSERT_TRUE(pair.a->receive(requests[3], received.data(), 8, 2, 0).ok());
  ASSERT_TRUE(pair.drive([&] { return pair.b->counters().payload_received > 2'000'000; }));
  const PulledCable pulled;
  ASSERT_TRUE(pair.drive([&] { return std::all_of(requests.begin(), requests.end(), has_ended); }));
  EXPECT_TRUE(std::all_of(requests.begin(), requests.end(), is_failed));
  EXPECT_EQ(pair.a->status().code(), Code::kRemoteError);
  EXPECT_THAT(pair.a->status().message(),
              AllOf(HasSubstr(pair.a->peer()), HasSubstr("no answer over rxe0:1")));
  EXPECT_EQ(pair.b->status().code(), Code::kRemoteError);
  EXPECT_THAT(pair.b->status().message(), HasSubstr("no answer over rxe0:1")) << "it is told why";
}

TEST(VerbsFaults, AWireThatComesBackInTimeLosesNothing) {
  Pair pair(verbs_variant(""));
  ASSERT_TRUE(pair.connected());
  const auto sent = pattern(8UL << 20, 1);
  std::vector<std::byte> received(sent.size());
  Request send;
  Request receive;
  ASSERT_TRUE(pair.b->receive(receive, received.data(), received.size(), 1, 0).ok());
  ASSERT_TRUE(pair.a->send(send, sent.data(), sent.size(), 1, 0).ok());
  ASSERT_TRUE(pair.drive([&] { return pair.b->counters().payload_received > 1'000'000; }));
  { const PulledCable pulled; }
  ASSERT_TRUE(pair.drive([&] { return has_ended(send) && has_ended(receive); }));
  EXPECT_TRUE(is_done(send) && is_done(receive)) << pair.a->status().message();
  EXPECT_EQ(received, sent);
}

/// A peer that advertises memory with a key that it does not have: the device refuses the write, and puts the
/// queue pair in error.
TEST(VerbsFaults, AQueuePairInErrorEndsAllRequestsAndNamesThePeer) {
  const Settings settings = on("=rxe1");
  Poller poller;
  ASSERT_TRUE(poller.open().ok());
  struct Deaf final : DeviceListener {
    void on_device_error(const ibv_qp*, const ibv_cq*, std::string_view) override {}
  } deaf;
  const VerbsLibrary* const library = *verbs_library();
  const auto ports = choose_ports(*all_ports(*library), "=rxe1");
  ASSERT_TRUE(ports.ok());
  auto port = OpenPort::open(*library, ports->front(),
                             *choose_address(ports->front(), -1, SocketFamily::kAny), false, poller, deaf);
  ASSERT_TRUE(port.ok()) << port.status().message();
  auto queues = VerbsQueues::make({port->get()}, settings, QueueSizes());
  ASSERT_TRUE(queues.ok());
  auto control = make_tcp_context(settings, SocketAddress(), 1);
  ASSERT_TRUE(control.ok());
  auto listener = (*control)->listen(0);
  ASSERT_TRUE(listener.ok());

  const auto context = make(impatient());
  auto endpoint = context->connect(0, marked((*listener)->handle()), {});
  ASSERT_TRUE(endpoint.ok());
  std::unique_ptr<Endpoint> peer;
  Request said;
  std::vector<std::byte> introduction;
  ASSERT_TRUE(drive({context.get(), control->get()}, [&] {
    auto accepted = (*listener)->accept();
    if (accepted.ok() && *accepted) {
      peer = std::move(*accepted);
      const auto hello = split_hello(peer->hello());
      EXPECT_TRUE(hello.ok() && (*queues)->connect(*decode_introduction(hello->transports)).ok());
      introduction = encode_introduction((*queues)->introduction());
      EXPECT_TRUE(peer->send(said, introduction.data(), introduction.size(), 1, 0).ok());
    }
    return (*endpoint)->state() == State::kReady;
  }));
  const auto data = pattern(1 << 20, 1);
  std::vector<std::byte> unused(100);
  std::array<Request, 3> requests;
  ASSERT_TRUE((*endpoint)->send(requests[0], data.data(), data.size(), 1, 0).ok());
  ASSERT_TRUE((*endpoint)->send(requests[1], data.data(), data.size(), 1, 0).ok());
  ASSERT_TRUE((*endpoint)->receive(requests[2], unused.data(), unused.size(), 1, 0).ok());
  bool answered = false;
  ASSERT_TRUE(drive({context.get(), control->get()}, [&] {
    std::array<ibv_wc, 4> completions{};
    const auto count = (*queues)->poll(completions);
    for (std::size_t i = 0; count.ok() && i < *count && !answered; ++i) {
      if (VerbsQueues::of(completions[i].wr_id) != VerbsQueues::Of::kArrival) continue;
      MessageHeader lie;
      lie.kind = MessageKind::kAdvertise;
      lie.address = reinterpret_cast<std::uintptr_t>(unused.data());
      lie.keys.fill(0xBAD);
      const int slot = (*queues)->take_slot();
      encode_message(lie, (*queues)->slot(slot));
      EXPECT_TRUE((*queues)->send_slot(slot, kMessageHeaderBytes).ok());
      answered = true;
    }
    return std::all_of(requests.begin(), requests.end(), has_ended);
  }));
  EXPECT_TRUE(std::all_of(requests.begin(), requests.end(), is_failed));
  EXPECT_THAT((*endpoint)->status().message(),
              AllOf(HasSubstr((*endpoint)->peer()), HasSubstr("remote access error")));
  EXPECT_EQ(context->failed(), endpoint->get());
}

TEST(VerbsFaults, ALimitOfLockedMemoryIsAnErrorThatSaysWhatToRaise) {
  const std::string said = in_child([] {
    const rlimit limit{64 << 10, 64 << 10};
    if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || ::setresuid(65534, 65534, 65534) != 0)
      return std::string("no limit");
    const auto context = make_context("verbs", on("=rxe0"), SocketAddress());
    if (!context.ok()) return context.status().message();
    auto listener = (*context)->listen(0);
    if (!listener.ok()) return listener.status().message();
    return (*context)->connect(0, (*listener)->handle(), {}).status().message();
  });
  EXPECT_THAT(said, AllOf(HasSubstr("RLIMIT_MEMLOCK of this process is 65536 bytes"),
                          HasSubstr("ulimit -l unlimited"), HasSubstr("LimitMEMLOCK=infinity"),
                          HasSubstr("--ulimit memlock=-1")));
}

}  // namespace
}  // namespace onebit::transport::test
