// Encodings of members, the roll and failures.
#include "bootstrap/member.h"

#include <unistd.h>
#include <xxhash.h>

#include <array>
#include <fstream>

#include "bootstrap/wire.h"

namespace onebit::bootstrap {
namespace {

constexpr std::size_t kVersionMax = 32;
constexpr std::size_t kHostMax = 64;
constexpr std::size_t kWhereMax = 192;
constexpr std::size_t kFailureMax = std::size_t{32} * 1024;

}  // namespace

std::string Member::where(std::string_view address) const {
  return formatted("{} ({}, pid {})", address, host, pid);
}

Member this_member(int rank, int world_size, std::string_view job_id, std::chrono::milliseconds patience) {
  Member member;
  member.rank = static_cast<std::uint32_t>(rank);
  member.world_size = static_cast<std::uint32_t>(world_size);
  member.job = XXH3_64bits(job_id.data(), job_id.size());
  member.pid = static_cast<std::uint32_t>(::getpid());
  std::array<char, 256> host{};
  member.host = ::gethostname(host.data(), host.size() - 1) == 0 ? host.data() : "unknown host";
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  if (boot.empty()) boot = member.host;
  member.machine = XXH3_64bits(boot.data(), boot.size());
  member.version = ONEBIT_VERSION;
  member.patience = patience;
  return member;
}

std::vector<std::byte> encode_member(const Member& member) {
  Writer writer;
  writer.text(member.version, kVersionMax);
  writer.u32(member.rank);
  writer.u32(member.world_size);
  writer.u64(member.job);
  writer.u32(member.pid);
  writer.u64(member.machine);
  writer.u32(static_cast<std::uint32_t>(member.patience.count()));
  writer.text(member.host, kHostMax);
  return writer.take();
}

Result<Member> decode_member(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  Member member;
  member.version = reader.text(kVersionMax);
  member.rank = reader.u32();
  member.world_size = reader.u32();
  member.job = reader.u64();
  member.pid = reader.u32();
  member.machine = reader.u64();
  member.patience = std::chrono::milliseconds(reader.u32());
  member.host = reader.text(kHostMax);
  if (!reader.complete()) return Status(Code::kDataError, "a rank's description of itself is malformed");
  return member;
}

std::vector<std::byte> encode_roll(const Roll& roll) {
  Writer writer;
  writer.bytes(std::as_bytes(std::span(roll.salt)));
  for (const Roll::Entry& entry : roll.entries) {
    writer.u64(entry.machine);
    writer.text(entry.where, kWhereMax);
  }
  return writer.take();
}

Result<Roll> decode_roll(std::span<const std::byte> bytes, std::size_t world_size) {
  Reader reader(bytes);
  Roll roll;
  const auto salt = reader.bytes(roll.salt.size());
  for (std::size_t i = 0; i < salt.size(); ++i) roll.salt[i] = std::to_integer<std::uint8_t>(salt[i]);
  for (std::size_t i = 0; i < world_size && reader.intact(); ++i) {
    Roll::Entry entry;
    entry.machine = reader.u64();
    entry.where = reader.text(kWhereMax);
    roll.entries.push_back(std::move(entry));
  }
  if (!reader.complete()) return Status(Code::kDataError, "rank 0's list of the ranks is malformed");
  return roll;
}

std::vector<std::byte> encode_failure(const Status& failure) {
  Writer writer;
  writer.u8(static_cast<std::uint8_t>(failure.code()));
  writer.text(failure.message(), kFailureMax);
  return writer.take();
}

Status decode_failure(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  const std::uint8_t code = reader.u8();
  const std::string text = reader.text(kFailureMax);
  if (!reader.complete() || code == 0 || code > static_cast<std::uint8_t>(Code::kDataError)) {
    return Status(Code::kDataError, "another rank's report of a failure is malformed");
  }
  return Status(static_cast<Code>(code), text);
}

std::string ranges_of(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text += last == first ? formatted("{}", ranks[first]) : formatted("{}-{}", ranks[first], ranks[last]);
    first = last + 1;
  }
  return text;
}

}  // namespace onebit::bootstrap
