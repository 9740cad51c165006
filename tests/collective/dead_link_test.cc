// A link that goes dead without a word: ranks in network namespaces on both sides of a veth pair, of which
// one end is taken down. Needs root and iproute2.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onebit/onebit.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "support/processes.h"

namespace onebit::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

/// Two namespaces with a link between them.
class TwoMachines {
 public:
  TwoMachines() : name_("1bt" + std::to_string(::getpid() % 100000)) {
    made_ = ip("netns add " + side(0)) && ip("netns add " + side(1)) &&
            ip("link add " + name_ + "a netns " + side(0) + " type veth peer name " + name_ + "b netns " +
               side(1)) &&
            set_up(0) && set_up(1);
  }
  ~TwoMachines() {
    for (const int i : {0, 1}) ip("netns del " + side(i));
  }
  TwoMachines(const TwoMachines&) = delete;
  TwoMachines& operator=(const TwoMachines&) = delete;
  bool made() const { return made_; }
  bool set_link(const char* state) const {
    return ip("-n " + side(1) + " link set " + device(1) + " " + state);
  }
  std::vector<std::string> launcher(int i) const { return {"ip", "netns", "exec", side(i)}; }

 private:
  std::string side(int i) const { return name_ + (i == 0 ? "-a" : "-b"); }
  std::string device(int i) const { return name_ + (i == 0 ? "a" : "b"); }
  bool set_up(int i) const {
    const std::string in = "-n " + side(i) + " ";
    return ip(in + "link set lo up") && ip(in + "link set " + device(i) + " up") &&
           ip(in + "addr add 10.199.7." + std::to_string(i + 1) + "/24 dev " + device(i));
  }
  static bool ip(const std::string& words) {
    return std::system(("PATH=/usr/sbin:/sbin:$PATH ip " + words + " 2>/dev/null").c_str()) == 0;
  }
  std::string name_;
  bool made_ = false;
};

ONEBIT_ROLE(reduces_over_the_link) {
  onebitComm_t comm = rank.init();
  if (comm == nullptr) return;
  std::vector<float> x(std::stoul(rank.variable("TEST_COUNT")), 1.0F);
  onebitResult_t result = onebitSuccess;
  for (int call = 0; result == onebitSuccess; ++call) {
    result = onebitAllReduce(x.data(), x.data(), x.size(), onebitFloat32, onebitAvg,
                             rank.variable("TEST_TAG").c_str(), comm, nullptr);
    if (call == 3) {
      rank.report("under way");
      // All wait for rank 2, which does nothing: a link that is idle when it goes dead.
      if (rank.variable("TEST_IDLE") == "yes" && rank.number() == 2) rank.wait_for("go");
    }
  }
  rank.report_result("ended", result);
  rank.check_ok(onebitCommDestroy(comm), "destroy");
}

struct Case {
  const char* count;
  const char* tag;
  const char* idle;
};

TEST(DeadLink, IsAnErrorOnBothSidesThatNamesARankOfTheOther) {
  for (const Case& c : {Case{"1000000", "", "no"}, Case{"1000000", "g", "no"}, Case{"100", "", "no"},
                        Case{"100000", "g", "yes"}}) {
    SCOPED_TRACE(std::string(c.count) + " " + c.tag + " idle " + c.idle);
    const TwoMachines machines;
    if (!machines.made())
      GTEST_SKIP() << "network namespaces cannot be made here (root and iproute2 are needed)";
    // Ranks 0 and 1 on one side, 2 on the other.
    Environment environment = local_job(3);
    environment["MASTER_ADDR"] = "10.199.7.1";
    environment["ONEBIT_SOCKET_IFNAME"] = "1bt";
    environment["ONEBIT_TIMEOUT"] = "6s";
    environment["ONEBIT_LINK_TIMEOUT"] = "2s";
    environment["TEST_COUNT"] = c.count;
    environment["TEST_TAG"] = c.tag;
    environment["TEST_IDLE"] = c.idle;
    std::vector<std::unique_ptr<RankProcess>> processes;
    for (int rank = 0; rank < 3; ++rank) {
      processes.push_back(std::make_unique<RankProcess>("reduces_over_the_link", rank, 3, environment,
                                                        machines.launcher(rank == 2 ? 1 : 0)));
    }
    for (const auto& process : processes) ASSERT_TRUE(process->await("under way", 60)) << process->log();
    ::usleep(200'000);
    const double since = now();
    ASSERT_TRUE(machines.set_link("down"));
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == 2) processes[2]->tell("go");
      const auto ended = processes[static_cast<std::size_t>(rank)]->await("ended", 40);
      ASSERT_TRUE(ended) << "rank " << rank
                         << " hangs; log: " << processes[static_cast<std::size_t>(rank)]->log();
      EXPECT_NE(ended->code, onebitSuccess);
      if (rank == 2) {
        EXPECT_THAT(ended->text, AnyOf(HasSubstr("rank 0"), HasSubstr("rank 1")));
      } else {
        EXPECT_THAT(ended->text, HasSubstr("rank 2")) << "rank " << rank;
      }
      EXPECT_LT(ended->at - since, 8 + prompt() + (rank == 2 && *c.idle == 'y' ? 8 : 0)) << ended->text;
    }
    for (const auto& process : processes) EXPECT_EQ(process->wait(60).value_or(-1), 0) << process->log();
  }
}

TEST(DeadLink, ThatComesBackInTimeGoesUnnoticed) {
  const TwoMachines machines;
  if (!machines.made())
    GTEST_SKIP() << "network namespaces cannot be made here (root and iproute2 are needed)";
  Environment environment = local_job(2);
  environment["MASTER_ADDR"] = "10.199.7.1";
  environment["ONEBIT_SOCKET_IFNAME"] = "1bt";
  environment["ONEBIT_LINK_TIMEOUT"] = "20s";
  environment["TEST_COUNT"] = "100000";
  environment["TEST_TAG"] = "g";
  RankProcess first("reduces_over_the_link", 0, 2, environment, machines.launcher(0));
  RankProcess second("reduces_over_the_link", 1, 2, environment, machines.launcher(1));
  ASSERT_TRUE(first.await("under way", 60)) << first.log();
  ASSERT_TRUE(machines.set_link("down"));
  ::usleep(700'000);
  ASSERT_TRUE(machines.set_link("up"));
  EXPECT_FALSE(first.await("ended", 3));
}

}  // namespace
}  // namespace onebit::testing
