// The table of settings: defaults, parsing, errors, NCCL's names, and the documentation made from it.
#include "base/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

namespace onebit {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// The settings that exactly these variables give.
Result<Settings> read(const std::map<std::string, std::string>& environment) {
  for (const SettingRow& row : setting_rows()) {
    ::unsetenv(std::string(row.name).c_str());
    if (!row.nccl_name.empty()) ::unsetenv(std::string(row.nccl_name).c_str());
  }
  for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
  return Settings::from_environment();
}

std::string error_of(const std::string& name, const std::string& value) {
  const auto settings = read({{name, value}});
  EXPECT_FALSE(settings.ok()) << name << "=" << value;
  if (settings.ok()) return {};
  EXPECT_EQ(Code::kInvalidArgument, settings.status().code());
  return settings.status().message();
}

TEST(Settings, EveryRowReadsWhatItShows) {
  const Settings defaults;
  for (const SettingRow& row : setting_rows()) {
    const std::string shown = row.value.show(defaults);
    if (shown.empty()) continue;  // unset by default
    Settings other;
    EXPECT_TRUE(row.value.parse(other, shown).ok()) << row.name << "=" << shown;
    EXPECT_EQ(shown, row.value.show(other)) << row.name;
    const auto read_back = read({{std::string(row.name), shown}});
    ASSERT_TRUE(read_back.ok()) << read_back.status().message();
    EXPECT_EQ(shown, row.value.show(*read_back));
  }
}

TEST(Settings, NamesAreUniqueAndOurs) {
  std::set<std::string_view> names;
  for (const SettingRow& row : setting_rows()) {
    EXPECT_TRUE(row.name.starts_with("ONEBIT_")) << row.name;
    EXPECT_TRUE(row.nccl_name.empty() || row.nccl_name.starts_with("NCCL_")) << row.nccl_name;
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_FALSE(row.type.empty()) << row.name;
    EXPECT_FALSE(row.meaning.empty()) << row.name;
  }
}

TEST(Settings, AnErrorNamesTheVariableTheValueAndWhatIsAccepted) {
  const std::vector<std::array<std::string, 3>> wrong{
      {"ONEBIT_BLOCK", "1000", "power of two"},
      {"ONEBIT_BLOCK", "128", "from 256"},
      {"ONEBIT_SCALE", "max", "rms, mean"},
      {"ONEBIT_MIN_SIZE", "-1", "whole number"},
      {"ONEBIT_MIN_SIZE", "1T", "K, M or G"},
      {"ONEBIT_PIPELINE_DEPTH", "0", "from 1 to 64"},
      {"ONEBIT_THREADS", "257", "from 0 to 256"},
      {"ONEBIT_TRANSPORT", "carrier pigeon", "tcp"},
      {"ONEBIT_SOCKET_FAMILY", "ipv6", "AF_INET6"},
      {"ONEBIT_PORT_RANGE", "200-100", "20000-20100"},
      {"ONEBIT_PORT_RANGE", "0-100", "20000-20100"},
      {"ONEBIT_PORT_RANGE", "70000", "20000-20100"},
      {"ONEBIT_TCP_FLOWS", "33", "from 0 to 32"},
      {"ONEBIT_IB_GID_INDEX", "-2", "or -1"},
      {"ONEBIT_IB_SL", "16", "from 0 to 15"},
      {"ONEBIT_IB_QPS_PER_CONNECTION", "0", "from 1 to 16"},
      {"ONEBIT_INIT_TIMEOUT", "soon", "seconds"},
      {"ONEBIT_INIT_TIMEOUT", "0", "above 0"},
      {"ONEBIT_TIMEOUT", "5 s", "seconds"},
      {"ONEBIT_SECRET_FILE", "/nonexistent/secret", "readable file"},
      {"ONEBIT_MASTER_PORT", "65536", "from 0 to 65535"},
      {"ONEBIT_DEBUG", "verbose", "NONE, WARN, INFO, TRACE"},
  };
  for (const auto& [name, value, accepted] : wrong) {
    EXPECT_THAT(error_of(name, value), AllOf(HasSubstr(name + "=" + value), HasSubstr(accepted)));
  }
}

TEST(Settings, WordsAreReadInAnyCaseAndShownAsTheyAreWritten) {
  for (const auto& [name, given, shown] : std::vector<std::array<std::string, 3>>{
           {"ONEBIT_DEBUG", "info", "INFO"},
           {"ONEBIT_DEBUG", "Trace", "TRACE"},
           {"ONEBIT_SCALE", "MEAN", "mean"},
           {"ONEBIT_TRANSPORT", "TCP", "tcp"},
           {"ONEBIT_SOCKET_FAMILY", "af_inet6", "AF_INET6"},
           {"ONEBIT_BLOCK", "WHOLE", "whole"},
       }) {
    const auto settings = read({{name, given}});
    ASSERT_TRUE(settings.ok()) << settings.status().message();
    for (const SettingRow& row : setting_rows()) {
      if (row.name == name) {
        EXPECT_EQ(shown, row.value.show(*settings));
      }
    }
  }
  EXPECT_THAT(error_of("ONEBIT_DEBUG", "inf"), HasSubstr("NONE, WARN, INFO, TRACE"));
  EXPECT_THAT(error_of("ONEBIT_DEBUG", "infos"), HasSubstr("NONE, WARN, INFO, TRACE"));
}

TEST(Settings, NcclsVariablesAreHonouredAndOursWin) {
  EXPECT_EQ("=eth1", read({{"NCCL_SOCKET_IFNAME", "=eth1"}})->socket_ifname);
  EXPECT_EQ("ib", read({{"NCCL_SOCKET_IFNAME", "=eth1"}, {"ONEBIT_SOCKET_IFNAME", "ib"}})->socket_ifname);
  EXPECT_EQ("=eth1", read({{"NCCL_SOCKET_IFNAME", "=eth1"}, {"ONEBIT_SOCKET_IFNAME", ""}})->socket_ifname)
      << "empty counts as unset";
  EXPECT_EQ(SocketFamily::kIPv6, read({{"NCCL_SOCKET_FAMILY", "AF_INET6"}})->socket_family);
  EXPECT_THAT(error_of("NCCL_SOCKET_FAMILY", "x"), HasSubstr("NCCL_SOCKET_FAMILY=x"))
      << "the name that was set";
}

TEST(Settings, ASecretComesFromAVariableOrAFileAndIsNeverShown) {
  const std::string path = ::testing::TempDir() + "onebit_secret_" + std::to_string(::getpid());
  std::ofstream(path) << "from the file\n";
  EXPECT_EQ("from the file", read({{"ONEBIT_SECRET_FILE", path}})->secret);
  const auto both = read({{"ONEBIT_SECRET_FILE", path}, {"ONEBIT_SECRET", "from the variable"}});
  ASSERT_TRUE(both.ok());
  EXPECT_EQ("from the variable", both->secret);
  EXPECT_THAT(print_settings(*both), AllOf(Not(HasSubstr("from the")), HasSubstr("ONEBIT_SECRET=(set)")));
  std::ofstream(path, std::ios::trunc).flush();
  EXPECT_FALSE(read({{"ONEBIT_SECRET_FILE", path}}).ok()) << "an empty file holds no secret";
  EXPECT_FALSE(read({{"ONEBIT_SECRET_FILE", "/dev/zero"}}).ok()) << "it has no end";
  const std::string fifo = path + ".fifo";
  ASSERT_EQ(0, ::mkfifo(fifo.c_str(), 0600));
  EXPECT_FALSE(read({{"ONEBIT_SECRET_FILE", fifo}}).ok()) << "it may block for ever";
  ::unlink(fifo.c_str());
  ::unlink(path.c_str());
}

TEST(Settings, ASecretOfTheLinesWinsOverTheEnvironments) {
  const std::string path = ::testing::TempDir() + "onebit_secret_" + std::to_string(::getpid());
  std::ofstream(path) << "from the file\n";
  auto settings = read({{"ONEBIT_SECRET", "from the environment"}});
  ASSERT_TRUE(settings.ok());
  ASSERT_TRUE(apply_settings(*settings, "ONEBIT_SECRET_FILE=" + path).ok());
  EXPECT_EQ("from the file", settings->secret);
  ASSERT_TRUE(apply_settings(*settings, "ONEBIT_SECRET=a word\nONEBIT_SECRET_FILE=" + path).ok());
  EXPECT_EQ("a word", settings->secret);
  ::unlink(path.c_str());
}

TEST(Settings, VariablesThatAreNoneAreFoundByTheirPrefix) {
  ASSERT_TRUE(read({{"ONEBIT_BLOCK", "512"}, {"ONEBIT_LIBRARY", "of/python.so"}}).ok());
  EXPECT_EQ(unknown_variables(), "");
  ::setenv("ONEBIT_COMPRES", "all", 1);
  ::setenv("NCCL_NO_SETTING", "1", 1);
  EXPECT_EQ(unknown_variables(), "ONEBIT_COMPRES");
  ::unsetenv("ONEBIT_COMPRES");
  ::unsetenv("NCCL_NO_SETTING");
}

TEST(Settings, LinesAreAppliedOnTopLikeVariables) {
  Settings settings;
  ASSERT_TRUE(apply_settings(settings, "ONEBIT_BLOCK=whole\n\nONEBIT_THREADS=3").ok());
  EXPECT_EQ(0U, settings.block);
  EXPECT_EQ(3U, settings.threads);
  EXPECT_THAT(apply_settings(settings, "ONEBIT_THREADS=many").message(), HasSubstr("ONEBIT_THREADS=many"));
  EXPECT_THAT(apply_settings(settings, "ONEBIT_TREADS=3").message(), HasSubstr("ONEBIT_TREADS"));
  EXPECT_FALSE(apply_settings(settings, "ONEBIT_THREADS").ok());
}

TEST(Settings, PrintingShowsEveryRowWithItsOrigin) {
  const auto settings = read({{"ONEBIT_BLOCK", "4K"}, {"NCCL_SOCKET_IFNAME", "eth"}});
  ASSERT_TRUE(settings.ok());
  const std::string text = print_settings(*settings);
  for (const SettingRow& row : setting_rows()) EXPECT_THAT(text, HasSubstr(std::string(row.name) + "="));
  EXPECT_THAT(text, HasSubstr("ONEBIT_BLOCK=4096  # ONEBIT_BLOCK\n"));
  EXPECT_THAT(text, HasSubstr("ONEBIT_SOCKET_IFNAME=eth  # NCCL_SOCKET_IFNAME\n"));
  EXPECT_THAT(text, HasSubstr("ONEBIT_DEBUG=WARN  # default\n"));
}

TEST(Settings, TheDocumentationHasOneProperTableRowForEach) {
  const std::string text = settings_markdown();
  for (const SettingRow& row : setting_rows()) {
    const auto at = text.find(formatted("\n| `{}`", row.name));
    ASSERT_NE(std::string::npos, at) << row.name;
    std::string line = text.substr(at + 1, text.find('\n', at + 1) - at - 1);
    int bars = 0;
    for (std::size_t i = 0; i < line.size(); ++i) bars += line[i] == '|' && (i == 0 || line[i - 1] != '\\');
    EXPECT_EQ(5, bars) << line;
    EXPECT_THAT(line, HasSubstr(std::string(row.nccl_name)));
  }
}

TEST(Settings, TheDocumentInTheTreeIsMadeFromTheTable) {
  std::ifstream file(ONEBIT_SETTINGS_MD);
  std::ostringstream contents;
  contents << file.rdbuf();
  EXPECT_EQ(settings_markdown(), contents.str()) << "run: onebit_config --markdown > docs/settings.md";
}

TEST(Settings, SizesAreWholeNumbersWithPowersOf1024) {
  EXPECT_EQ(0U, *parse_size("0"));
  EXPECT_EQ(65536U, *parse_size("64K"));
  EXPECT_EQ(3U << 20, *parse_size("3m"));
  EXPECT_EQ(std::uint64_t{2} << 30, *parse_size("2G"));
  for (const std::string_view wrong :
       {"", "K", "1.5K", "1KB", "-1", " 1", "1 ", "0x10", "9999999999999999999999", "2000000000G"}) {
    EXPECT_FALSE(parse_size(wrong).ok()) << wrong;
  }
}

TEST(Settings, DurationsHaveSecondsOrAUnit) {
  EXPECT_EQ(std::chrono::seconds(5), *parse_duration("5"));
  EXPECT_EQ(std::chrono::milliseconds(1500), *parse_duration("1.5"));
  EXPECT_EQ(std::chrono::milliseconds(250), *parse_duration("250ms"));
  EXPECT_EQ(std::chrono::minutes(2), *parse_duration("2min"));
  for (const std::string_view wrong :
       {"", "s", "0", "-1", "5h", "inf", "nan", "1e3", "1..2", "0.0001", "99999999999"}) {
    EXPECT_FALSE(parse_duration(wrong).ok()) << wrong;
  }
}

TEST(Settings, BlocksAreWholeOrAPowerOfTwo) {
  EXPECT_EQ(0U, *parse_block("whole"));
  EXPECT_EQ(0U, *parse_block("Whole"));
  EXPECT_EQ(256U, *parse_block("256"));
  EXPECT_EQ(65536U, *parse_block("64K"));
  for (const std::string_view wrong : {"", "0", "255", "128", "2047", "131072", "hole"}) {
    EXPECT_FALSE(parse_block(wrong).ok()) << wrong;
  }
}

}  // namespace
}  // namespace onebit
