#include "transport/tcp/tcp_lent.h"

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/log.h"

namespace onebit::transport {
namespace {

/// So many calls in a row must be copied before the flow gives up lending.
constexpr std::uint32_t kCopiedInVain = 32;

bool is_report(const cmsghdr& part) noexcept {
  return (part.cmsg_level == SOL_IP && part.cmsg_type == IP_RECVERR) ||
         (part.cmsg_level == SOL_IPV6 && part.cmsg_type == IPV6_RECVERR);
}

}  // namespace

bool LentPayloads::enable(int fd, std::uint64_t from) noexcept {
  const int on = 1;
  if (from == 0 || setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) != 0) return false;
  from_ = from;
  return true;
}

void LentPayloads::add_call(const Payload& payload) {
  if (entries_.empty() || !entries_.back().open) entries_.push_back({payload, next_call_, 0, 0, true});
  ++entries_.back().calls;
  ++next_call_;
}

bool LentPayloads::close() noexcept {
  if (entries_.empty() || !entries_.back().open) return true;
  Entry& entry = entries_.back();
  entry.open = false;
  if (entry.returned < entry.calls) return false;
  entries_.pop_back();
  return true;
}

void LentPayloads::take_returned(int fd, std::vector<Payload>& returned) {
  for (;;) {
    alignas(cmsghdr) std::array<char, 256> control;
    msghdr message{};
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    if (::recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
      if (errno == EINTR) continue;
      return;
    }
    for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
      if (!is_report(*part)) continue;
      sock_extended_err report;
      std::memcpy(&report, CMSG_DATA(part), sizeof report);
      if (report.ee_origin != SO_EE_ORIGIN_ZEROCOPY) continue;
      const bool copied = (report.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0;
      copied_ = copied ? copied_ + (report.ee_data - report.ee_info + 1) : 0;
      take_range(report.ee_info, report.ee_data, returned);
    }
    if (from_ != 0 && copied_ >= kCopiedInVain) {
      from_ = 0;
      log(LogLevel::kInfo,
          "transport: the kernel copies on this path what it is to send without a copy: "
          "ONEBIT_TCP_ZEROCOPY has no effect on this connection any more");
    }
  }
}

void LentPayloads::take_range(std::uint32_t first, std::uint32_t last, std::vector<Payload>& returned) {
  // Numbers wrap around: they are compared by their distance to the oldest call that is under way.
  for (Entry& entry : entries_) {
    const std::int64_t begin = static_cast<std::int32_t>(first - entry.first_call);
    const std::int64_t end =
        static_cast<std::int64_t>(static_cast<std::int32_t>(last - entry.first_call)) + 1;
    const std::int64_t overlap = std::min<std::int64_t>(end, entry.calls) - std::max<std::int64_t>(begin, 0);
    if (overlap > 0) entry.returned += static_cast<std::uint32_t>(overlap);
  }
  std::erase_if(entries_, [&](const Entry& entry) {
    if (entry.open || entry.returned < entry.calls) return false;
    returned.push_back(entry.payload);
    return true;
  });
}

void LentPayloads::drop(std::vector<Payload>& payloads) {
  for (const Entry& entry : entries_) payloads.push_back(entry.payload);
  entries_.clear();
}

}  // namespace onebit::transport
