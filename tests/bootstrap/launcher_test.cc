// A rank's place from made-up environments of each launcher.
#include "bootstrap/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

namespace onebit::bootstrap {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Environment = std::map<std::string, std::string>;

/// The launch that exactly these variables give.
Result<Launch> detect(const Environment& environment, const Settings& settings = {}) {
  for (const char* name : {"RANK",
                           "WORLD_SIZE",
                           "LOCAL_WORLD_SIZE",
                           "MASTER_ADDR",
                           "MASTER_PORT",
                           "TORCHELASTIC_RUN_ID",
                           "TORCHELASTIC_USE_AGENT_STORE",
                           "OMPI_COMM_WORLD_RANK",
                           "OMPI_COMM_WORLD_SIZE",
                           "OMPI_COMM_WORLD_LOCAL_SIZE",
                           "OMPI_MCA_ess_base_jobid",
                           "PMIX_NAMESPACE",
                           "PMI_RANK",
                           "PMI_SIZE",
                           "MPI_LOCALNRANKS",
                           "PMI_JOBID",
                           "SLURM_PROCID",
                           "SLURM_NTASKS",
                           "SLURM_JOB_ID",
                           "SLURM_STEP_ID",
                           "SLURM_JOB_NODELIST",
                           "SLURM_STEP_NODELIST"}) {
    ::unsetenv(name);
  }
  for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
  return detect_launch(settings);
}

std::string error_of(const Environment& environment) {
  const auto launch = detect(environment);
  EXPECT_FALSE(launch.ok());
  if (launch.ok()) return {};
  EXPECT_EQ(Code::kInvalidUsage, launch.status().code());
  return launch.status().message();
}

Environment with(Environment base, const Environment& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

const Environment kPlain{
    {"RANK", "3"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}};
const Environment kSlurm{{"SLURM_PROCID", "5"},
                         {"SLURM_NTASKS", "6"},
                         {"SLURM_JOB_ID", "4711"},
                         {"SLURM_JOB_NODELIST", "node[07-09,12],login1"}};

TEST(Launcher, ReadsRankAndWorldSizeAndTheMaster) {
  const auto launch = detect(with(kPlain, {{"LOCAL_WORLD_SIZE", "4"}}));
  ASSERT_TRUE(launch.ok()) << launch.status().message();
  EXPECT_EQ(3, launch->rank);
  EXPECT_EQ(8, launch->world_size);
  EXPECT_EQ(4, launch->local_world_size);
  EXPECT_EQ("node1", launch->master_host);
  EXPECT_EQ(29500, launch->master_port) << "MASTER_PORT as given where no torchrun owns it";
  EXPECT_EQ("torchrun", launch->launcher);
  EXPECT_EQ("", launch->job_id);
}

TEST(Launcher, KeepsClearOfThePortOfTorchrunsStore) {
  const Environment torchrun = with(kPlain, {{"TORCHELASTIC_RUN_ID", "run7"}});
  const auto launch = detect(torchrun);
  ASSERT_TRUE(launch.ok());
  EXPECT_GT(launch->master_port, 61000);
  EXPECT_EQ(launch->master_port, detect(with(torchrun, {{"RANK", "0"}}))->master_port)
      << "the same on all ranks";
  EXPECT_NE(launch->master_port, detect(with(torchrun, {{"MASTER_PORT", "29501"}}))->master_port);
  EXPECT_EQ("run7", launch->job_id);
  EXPECT_GT(detect(with(kPlain, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}}))->master_port, 61000);

  Settings settings;
  settings.master_port = 1234;
  settings.job_id = "mine";
  EXPECT_EQ(1234, detect(torchrun, settings)->master_port);
  EXPECT_EQ("mine", detect(torchrun, settings)->job_id);
}

TEST(Launcher, ReadsOpenMpi) {
  const Environment open_mpi{{"OMPI_COMM_WORLD_RANK", "1"},
                             {"OMPI_COMM_WORLD_SIZE", "4"},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                             {"MASTER_ADDR", "10.0.0.1"},
                             {"MASTER_PORT", "4000"},
                             {"OMPI_MCA_ess_base_jobid", "3405774849"}};
  const auto launch = detect(open_mpi);
  ASSERT_TRUE(launch.ok()) << launch.status().message();
  EXPECT_EQ(1, launch->rank);
  EXPECT_EQ(4, launch->world_size);
  EXPECT_EQ(2, launch->local_world_size);
  EXPECT_EQ(4000, launch->master_port);
  EXPECT_EQ("3405774849", launch->job_id);
  EXPECT_EQ("Open MPI", launch->launcher);

  EXPECT_THAT(error_of(with(open_mpi, {{"MASTER_ADDR", ""}})), HasSubstr("mpirun -x MASTER_ADDR"));
  const auto local =
      detect(with(open_mpi, {{"MASTER_ADDR", ""}, {"MASTER_PORT", ""}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}));
  ASSERT_TRUE(local.ok()) << "mpirun on one machine needs no master address";
  EXPECT_EQ("127.0.0.1", local->master_host);
  EXPECT_GT(local->master_port, 61000);
}

TEST(Launcher, ReadsPmi) {
  const auto launch =
      detect({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "4000"}});
  ASSERT_TRUE(launch.ok()) << launch.status().message();
  EXPECT_EQ(0, launch->rank);
  EXPECT_EQ(2, launch->world_size);
  EXPECT_EQ("PMI", launch->launcher);
}

TEST(Launcher, ReadsSlurmWithoutAMasterGiven) {
  const auto launch = detect(kSlurm);
  ASSERT_TRUE(launch.ok()) << launch.status().message();
  EXPECT_EQ(5, launch->rank);
  EXPECT_EQ(6, launch->world_size);
  EXPECT_EQ("node07", launch->master_host);
  EXPECT_EQ("4711", launch->job_id);
  EXPECT_EQ("Slurm", launch->launcher);
  EXPECT_NE(launch->master_port, detect(with(kSlurm, {{"SLURM_JOB_ID", "4712"}}))->master_port);

  const auto step = detect(with(kSlurm, {{"SLURM_STEP_ID", "1"}, {"SLURM_STEP_NODELIST", "node[08-09]"}}));
  ASSERT_TRUE(step.ok());
  EXPECT_EQ("node08", step->master_host) << "a step's rank 0 is on the first of the step's hosts";
  EXPECT_EQ("4711.1", step->job_id);
  EXPECT_NE(step->master_port, launch->master_port) << "steps of one job run side by side";

  const auto given = detect(with(kSlurm, {{"MASTER_ADDR", "other"}, {"MASTER_PORT", "77"}}));
  ASSERT_TRUE(given.ok());
  EXPECT_EQ("other", given->master_host);
  EXPECT_EQ(77, given->master_port);

  EXPECT_EQ("Slurm", detect(with(kSlurm, {{"PMI_RANK", "5"}, {"PMI_SIZE", "6"}}))->launcher)
      << "srun --mpi=pmi2 sets both";
}

TEST(Launcher, ExpandsTheFirstHostOfASlurmList) {
  EXPECT_EQ("n1", first_host("n1"));
  EXPECT_EQ("n1", first_host("n1,n2"));
  EXPECT_EQ("node001", first_host("node[001-128]"));
  EXPECT_EQ("node3", first_host("node[3,5-9]"));
  EXPECT_EQ("rack1node04.x", first_host("rack[1-2]node[04-07].x,b[1-3]"));
  for (const std::string_view wrong : {"", ",n1", "n[", "n[1", "n1]", "n[]", "n[-3]", "n[a-b]", "n[[1]]"}) {
    EXPECT_EQ("", first_host(wrong)) << wrong;
  }
}

TEST(Launcher, TorchrunsVariablesWinOverTheBatchSystemAroundIt) {
  // srun starts one torchrun a node: SLURM_* count nodes, RANK counts ranks.
  const auto launch = detect(with(with(kSlurm, kPlain), {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}}));
  ASSERT_TRUE(launch.ok()) << launch.status().message();
  EXPECT_EQ(3, launch->rank);
  EXPECT_EQ(8, launch->world_size);
}

TEST(Launcher, ALoneVariableOfAnotherLauncherMustAgree) {
  EXPECT_EQ(5, detect(with(kSlurm, {{"WORLD_SIZE", "6"}}))->rank);
  EXPECT_THAT(error_of(with(kSlurm, {{"WORLD_SIZE", "8"}})),
              AllOf(HasSubstr("WORLD_SIZE=8"), HasSubstr("SLURM_NTASKS=6")));
  EXPECT_THAT(error_of(with(kSlurm, {{"RANK", "2"}})),
              AllOf(HasSubstr("RANK=2"), HasSubstr("SLURM_PROCID=5")));
}

TEST(Launcher, AloneARankNeedsNoMaster) {
  const auto launch = detect({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  ASSERT_TRUE(launch.ok()) << launch.status().message();
  EXPECT_EQ(1, launch->world_size);
  EXPECT_EQ("", launch->master_host);
}

TEST(Launcher, NamesWhatIsMissing) {
  EXPECT_THAT(error_of({}), HasSubstr("WORLD_SIZE"));
  EXPECT_THAT(error_of({{"RANK", "3"}}), AllOf(HasSubstr("RANK=3"), HasSubstr("WORLD_SIZE is not")));
  EXPECT_THAT(error_of({{"WORLD_SIZE", "3"}}), AllOf(HasSubstr("WORLD_SIZE=3"), HasSubstr("RANK is not")));
  EXPECT_THAT(error_of({{"OMPI_COMM_WORLD_SIZE", "3"}}), HasSubstr("OMPI_COMM_WORLD_RANK is not"));
  EXPECT_THAT(error_of({{"PMI_RANK", "3"}}), HasSubstr("PMI_SIZE is not"));
  EXPECT_THAT(error_of({{"SLURM_PROCID", "3"}}), HasSubstr("SLURM_NTASKS is not"));
  EXPECT_THAT(error_of(with(kPlain, {{"MASTER_ADDR", ""}})), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(error_of(with(kPlain, {{"MASTER_PORT", ""}})), HasSubstr("MASTER_PORT is not set"));
  EXPECT_THAT(error_of(with(kSlurm, {{"SLURM_JOB_NODELIST", ""}})), HasSubstr("SLURM_JOB_NODELIST"));
  EXPECT_THAT(error_of(with(kSlurm, {{"SLURM_JOB_ID", ""}})), HasSubstr("MASTER_PORT is not set"));
}

TEST(Launcher, NamesWhatIsMalformedOrOutOfRange) {
  for (const std::string wrong : {"x", "3x", " 3", "-1", "3.0", "0x3", "99999999999999999999", "65536"}) {
    EXPECT_THAT(error_of(with(kPlain, {{"RANK", wrong}})),
                AllOf(HasSubstr("RANK=" + wrong), HasSubstr("accepted")));
  }
  for (const std::string wrong : {"0", "-4", "65537", "four"}) {
    EXPECT_THAT(error_of(with(kPlain, {{"WORLD_SIZE", wrong}})), HasSubstr("WORLD_SIZE=" + wrong));
  }
  for (const std::string wrong : {"0", "65536", "http"}) {
    EXPECT_THAT(error_of(with(kPlain, {{"MASTER_PORT", wrong}})), HasSubstr("MASTER_PORT=" + wrong));
  }
  EXPECT_THAT(error_of(with(kPlain, {{"RANK", "8"}})), AllOf(HasSubstr("RANK=8"), HasSubstr("WORLD_SIZE=8")));
  EXPECT_THAT(error_of(with(kPlain, {{"LOCAL_WORLD_SIZE", "9"}})),
              AllOf(HasSubstr("LOCAL_WORLD_SIZE=9"), HasSubstr("WORLD_SIZE=8")));
  EXPECT_THAT(error_of(with(kSlurm, {{"SLURM_JOB_NODELIST", "n[1"}})), HasSubstr("SLURM_JOB_NODELIST=n[1"));
  EXPECT_THAT(error_of({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "none"}}),
              HasSubstr("OMPI_COMM_WORLD_SIZE=none"));
  EXPECT_THAT(error_of({{"PMI_RANK", "two"}, {"PMI_SIZE", "3"}}), HasSubstr("PMI_RANK=two"));
}

}  // namespace
}  // namespace onebit::bootstrap
