#include "measure.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <vector>

namespace onebit::perf {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double median(std::vector<double>& values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

template <typename Send, typename Receive>
Result<double> bounce(std::uint32_t rounds, bool first, Send send, Receive receive) {
  std::vector<double> half_trips;
  for (std::uint32_t i = 0; i < rounds; ++i) {
    const auto start = Clock::now();
    if (first) ONEBIT_RETURN_IF_ERROR(send());
    ONEBIT_RETURN_IF_ERROR(receive());
    if (!first) ONEBIT_RETURN_IF_ERROR(send());
    half_trips.push_back(since(start) * 1e6 / 2);
  }
  return median(half_trips);
}

/// What the receiver tells the sender at the end.
struct Outcome {
  std::uint64_t bytes = 0;
  double seconds = 0;
  double cpu_seconds = 0;
};

/// Where a message carries its number.
std::size_t number_bytes(std::size_t bytes) {
  return std::min<std::size_t>(bytes / 2, sizeof(std::uint64_t));
}
void mark(std::byte* data, std::size_t bytes, std::uint64_t number) {
  const std::size_t size = number_bytes(bytes);
  std::memcpy(data, &number, size);
  std::memcpy(data + bytes - size, &number, size);
}
bool is_marked(const std::byte* data, std::size_t bytes, std::uint64_t number) {
  const std::size_t size = number_bytes(bytes);
  return std::memcmp(data, &number, size) == 0 && std::memcmp(data + bytes - size, &number, size) == 0;
}

using Buffers = std::vector<std::vector<std::byte>>;

/// Ends with an empty message.
Status send_for(Comms& comms, Buffers& buffers, std::size_t bytes, double seconds) {
  std::deque<void*> pending;
  std::uint64_t started = 0, ended = 0;
  int size = 0;
  const auto start = Clock::now();
  for (bool stop = false; !stop || !pending.empty();) {
    if (!stop && pending.size() < buffers.size()) {
      stop = (started & 15) == 0 && since(start) >= seconds && started > 0;
      std::byte* const data = buffers[started % buffers.size()].data();
      if (!stop) mark(data, bytes, started);
      void* request = nullptr;
      while (request == nullptr) ONEBIT_RETURN_IF_ERROR(comms.send(data, stop ? 0 : bytes, request));
      pending.push_back(request);
      ++started;
      continue;
    }
    bool done = false;
    ONEBIT_RETURN_IF_ERROR(comms.test(pending.front(), done, size));
    if (!done) continue;
    pending.pop_front();
    ++ended;
  }
  return Status();
}

Status receive_all(Comms& comms, Buffers& buffers, std::size_t bytes, Outcome& outcome) {
  std::deque<void*> pending;
  std::uint64_t posted = 0, ended = 0;
  Clock::time_point start;
  double cpu_start = 0;
  for (bool more = true; more;) {
    if (pending.size() < buffers.size()) {
      void* request = nullptr;
      ONEBIT_RETURN_IF_ERROR(comms.receive(buffers[posted % buffers.size()].data(), bytes, request));
      if (request != nullptr) {
        pending.push_back(request);
        ++posted;
      }
    }
    bool done = false;
    int size = 0;
    ONEBIT_RETURN_IF_ERROR(comms.test(pending.front(), done, size));
    if (!done) continue;
    pending.pop_front();
    if (size == 0) {
      more = false;
    } else if (!is_marked(buffers[ended % buffers.size()].data(), bytes, ended)) {
      return Status::error(Code::kDataError, "message {} of {} bytes has arrived wrong", ended, bytes);
    } else if (ended == 0) {
      start = Clock::now();
      cpu_start = cpu_seconds();
    } else {
      outcome.bytes += static_cast<std::uint64_t>(size);
    }
    ++ended;
  }
  outcome.seconds = since(start);
  outcome.cpu_seconds = cpu_seconds() - cpu_start;
  // What is still posted is met by empty messages.
  const std::uint64_t left = pending.size();
  ONEBIT_RETURN_IF_ERROR(comms.send_now(&left, sizeof left));
  int size = 0;
  for (void* request : pending) {
    for (bool done = false; !done;) ONEBIT_RETURN_IF_ERROR(comms.test(request, done, size));
  }
  return Status();
}

}  // namespace

Result<double> latency(Comms& comms, std::size_t bytes, std::uint32_t rounds, bool first) {
  std::vector<std::byte> data(bytes);
  return bounce(
      rounds, first, [&] { return comms.send_now(data.data(), bytes); },
      [&] { return comms.receive_now(data.data(), bytes); });
}

Result<double> plain_latency(Plain& plain, std::size_t bytes, std::uint32_t rounds, bool first) {
  std::vector<std::byte> data(bytes);
  return bounce(
      rounds, first, [&] { return plain.send(data); }, [&] { return plain.receive(data, true); });
}

Result<Bandwidth> bandwidth(Comms& comms, Plain& plain, std::size_t bytes, std::uint32_t inflight,
                            double seconds, bool first) {
  Buffers buffers(inflight, std::vector<std::byte>(bytes));
  ONEBIT_RETURN_IF_ERROR(plain.meet());
  Outcome outcome;
  Bandwidth result;
  if (!first) {
    ONEBIT_RETURN_IF_ERROR(receive_all(comms, buffers, bytes, outcome));
    ONEBIT_RETURN_IF_ERROR(plain.send_value(outcome));
    return result;
  }
  const double cpu_start = cpu_seconds();
  ONEBIT_RETURN_IF_ERROR(send_for(comms, buffers, bytes, seconds));
  const double own = cpu_seconds() - cpu_start;
  std::uint64_t left = 0;
  ONEBIT_RETURN_IF_ERROR(comms.receive_now(&left, sizeof left));
  for (std::uint64_t i = 0; i < left; ++i) ONEBIT_RETURN_IF_ERROR(comms.send_now(nullptr, 0));
  ONEBIT_RETURN_IF_ERROR(plain.receive_value(outcome));
  const double gigabytes = static_cast<double>(outcome.bytes) / 1e9;
  if (outcome.seconds > 0) result.gbps = gigabytes * 8 / outcome.seconds;
  if (gigabytes > 0) result.cpu_s_per_gb = (own + outcome.cpu_seconds) / gigabytes;
  return result;
}

}  // namespace onebit::perf
