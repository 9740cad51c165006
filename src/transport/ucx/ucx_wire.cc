#include "transport/ucx/ucx_wire.h"

#include <cstring>

#include "transport/controlled_wire.h"
#include "transport/little_endian.h"

namespace onebit::transport {
namespace {

constexpr std::size_t kHeaderBytes = 32;
constexpr std::uint8_t kVersion = 1;
// kind u8 | version u8 | own worker u8 | peer's worker u8 | window u32 | core u64 | token u64 | address
constexpr std::size_t kIntroductionFixed = 24;
constexpr std::size_t kHelloBytes = 9;

Status other_version() {
  return Status(Code::kInvalidUsage, "it has another version of onebit's UCX transport");
}

}  // namespace

std::size_t encode_ucx(const UcxHeader& header, std::array<std::byte, kMostUcxHeader>& to) noexcept {
  wire::store(to.data(), header.token);
  wire::store(to.data() + 8, header.segment);
  wire::store(to.data() + 12, header.freed);
  wire::store(to.data() + 16, header.tag);
  wire::store(to.data() + 24, header.check);
  wire::store(to.data() + 28, static_cast<std::uint32_t>(header.kind));
  if (header.kind != SegmentOf::kFirst) return kHeaderBytes;
  wire::store(to.data() + kHeaderBytes, header.bytes);
  return kMostUcxHeader;
}

const char* decode_ucx(std::span<const std::byte> from, std::size_t segment_bytes,
                       UcxHeader& header) noexcept {
  if (from.size() < kHeaderBytes) return "bytes that are no message";
  header.token = wire::load<std::uint64_t>(from.data());
  header.segment = wire::load<std::uint32_t>(from.data() + 8);
  header.freed = wire::load<std::uint32_t>(from.data() + 12);
  header.tag = wire::load<std::uint64_t>(from.data() + 16);
  header.check = wire::load<std::uint32_t>(from.data() + 24);
  header.kind = static_cast<SegmentOf>(from[28]);
  header.bytes = segment_bytes;
  switch (header.kind) {
    case SegmentOf::kWhole:
      return from.size() == kHeaderBytes ? nullptr : "a message with more behind its header than it has";
    case SegmentOf::kFirst:
      if (from.size() != kMostUcxHeader) return "a message without its size";
      header.bytes = wire::load<std::uint64_t>(from.data() + kHeaderBytes);
      return segment_bytes > 0 && header.bytes > segment_bytes && header.bytes < 1ULL << 47
                 ? nullptr
                 : "a message of an impossible size";
    case SegmentOf::kNext:
      return from.size() == kHeaderBytes && segment_bytes > 0 ? nullptr : "an empty segment";
    case SegmentOf::kCredits:
      return from.size() == kHeaderBytes && segment_bytes == 0 ? nullptr : "credits with bytes behind them";
  }
  return "a message of an unknown kind";
}

std::vector<std::byte> encode_ucx_introduction(const UcxIntroduction& introduction) {
  std::vector<std::byte> bytes(kIntroductionFixed + introduction.address.size());
  bytes[0] = static_cast<std::byte>(ControlKind::kIntroduction);
  bytes[1] = std::byte{kVersion};
  bytes[2] = std::byte{introduction.own_worker};
  bytes[3] = std::byte{introduction.peer_worker};
  wire::store(bytes.data() + 4, introduction.window);
  wire::store(bytes.data() + 8, introduction.core);
  wire::store(bytes.data() + 16, introduction.token);
  std::copy(introduction.address.begin(), introduction.address.end(), bytes.begin() + kIntroductionFixed);
  return bytes;
}

Result<UcxIntroduction> decode_ucx_introduction(std::span<const std::byte> bytes) {
  if (bytes.size() <= kIntroductionFixed || bytes.size() > kMostUcxControl ||
      bytes[0] != static_cast<std::byte>(ControlKind::kIntroduction)) {
    return bad_control();
  }
  if (bytes[1] != std::byte{kVersion}) return other_version();
  UcxIntroduction introduction;
  introduction.own_worker = static_cast<std::uint8_t>(bytes[2]);
  introduction.peer_worker = static_cast<std::uint8_t>(bytes[3]);
  introduction.window = wire::load<std::uint32_t>(bytes.data() + 4);
  introduction.core = wire::load<std::uint64_t>(bytes.data() + 8);
  introduction.token = wire::load<std::uint64_t>(bytes.data() + 16);
  if (introduction.window == 0 || introduction.window > UcxWindow::kMost) return bad_control();
  introduction.address.assign(bytes.begin() + kIntroductionFixed, bytes.end());
  return introduction;
}

std::vector<std::byte> encode_ucx_hello(std::uint64_t core) {
  std::vector<std::byte> bytes(kHelloBytes);
  bytes[0] = std::byte{kVersion};
  wire::store(bytes.data() + 1, core);
  return bytes;
}

Result<std::uint64_t> decode_ucx_hello(std::span<const std::byte> bytes) {
  if (bytes.size() != kHelloBytes) return Status(Code::kDataError, "its hello is malformed");
  if (bytes[0] != std::byte{kVersion}) return other_version();
  return wire::load<std::uint64_t>(bytes.data() + 1);
}

}  // namespace onebit::transport
