// Residual files that are damaged, or not what they should be, are refused, and nothing changes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "residual_files.h"

namespace onebit::collective {
namespace {

using onebit::testing::read_bytes;
using onebit::testing::write_bytes;
using ::testing::HasSubstr;

/// Loading fails with kDataError naming the file, and changes nothing.
void expect_refused(const TemporaryDirectory& directory, std::size_t ranks, std::string_view words) {
  ResidualStore store = filled(0, ranks);
  const Status status = load_residuals(store, "dp", directory.path()).status();
  ASSERT_EQ(status.code(), Code::kDataError) << status.message();
  EXPECT_THAT(status.message(), HasSubstr("rank-0-of-2"));
  EXPECT_THAT(status.message(), HasSubstr(std::string(words)));
  expect_equal(store, filled(0, ranks));
}

TEST(DamagedFile, TruncatedAnywhereIsRefused) {
  const TemporaryDirectory directory;
  save_all(directory, 2);
  const std::string path = file_of(directory, 0, 2);
  const std::string whole = read_bytes(path);
  ASSERT_GT(whole.size(), 6000U);
  for (std::size_t length = 0; length < whole.size(); length += length < 200 ? 1 : 97) {
    SCOPED_TRACE(length);
    write_bytes(path, whole.substr(0, length));
    for (const std::size_t ranks : {2U, 3U}) expect_refused(directory, ranks, "");
    if (::testing::Test::HasFailure()) return;
  }
  write_bytes(path, whole.substr(0, whole.size() - 1));
  expect_refused(directory, 2, "truncated");
  write_bytes(path, whole + "x");
  expect_refused(directory, 2, "1 bytes follow");
}

TEST(DamagedFile, WithAnyByteChangedIsRefused) {
  const TemporaryDirectory directory;
  save_all(directory, 2);
  const std::string path = file_of(directory, 0, 2);
  const std::string whole = read_bytes(path);
  for (std::size_t at = 0; at < whole.size(); at += at < 200 || at + 20 > whole.size() ? 1 : 53) {
    for (const int flip : {1, 0x80, 0xFF}) {
      SCOPED_TRACE(formatted("byte {} xor {}", at, flip));
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      write_bytes(path, damaged);
      expect_refused(directory, 2, "");
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(DamagedFile, OfAnotherVersionSaysWhich) {
  const TemporaryDirectory directory;
  save_all(directory, 2);
  std::string bytes = read_bytes(file_of(directory, 0, 2));
  bytes[8] = 7;
  write_bytes(file_of(directory, 0, 2), bytes);
  expect_refused(directory, 2, "version 7");
}

TEST(DamagedFile, ThatIsAnotherRanksSaysWhose) {
  const TemporaryDirectory directory;
  save_all(directory, 2);
  std::filesystem::copy_file(file_of(directory, 1, 2), file_of(directory, 0, 2),
                             std::filesystem::copy_options::overwrite_existing);
  expect_refused(directory, 2, "rank 1 of 2");
  const TemporaryDirectory four;
  save_all(four, 4);
  std::filesystem::copy_file(file_of(four, 0, 4), file_of(directory, 0, 2),
                             std::filesystem::copy_options::overwrite_existing);
  expect_refused(directory, 2, "rank 0 of 4");
}

TEST(DamagedFile, OfSomethingElseIsRefused) {
  const TemporaryDirectory directory;
  save_all(directory, 2);
  write_bytes(file_of(directory, 0, 2), std::string(10'000, '\0'));
  expect_refused(directory, 2, "not a file of residuals");
}

}  // namespace
}  // namespace onebit::collective
