#include "measure.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <new>
#include <numeric>
#include <vector>

namespace onebit::perf {
namespace {

using Clock = std::chrono::steady_clock;

/// The one tag: its residuals are dropped between the parts of a measurement.
constexpr const char* kTag = "onebit_allreduce_perf";
constexpr std::uint64_t kErrorSeed = 99;

double combine(const std::vector<double>& seconds, TimeOf how) {
  switch (how) {
    case TimeOf::kRank0:
      return seconds.front();
    case TimeOf::kMinimum:
      return *std::min_element(seconds.begin(), seconds.end());
    case TimeOf::kMaximum:
      return *std::max_element(seconds.begin(), seconds.end());
    case TimeOf::kAverage:
      break;
  }
  return std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(seconds.size());
}

/// ||sums - calls * expected|| / ||calls * expected||
double relative_error(const std::vector<double>& sums, const std::vector<double>& expected, double calls) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const double target = calls * expected[i];
    difference += (sums[i] - target) * (sums[i] - target);
    norm += target * target;
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

std::string size_text(std::size_t bytes) {
  for (const auto& [unit, letter] :
       {std::pair{std::size_t{1} << 30, 'G'}, std::pair{std::size_t{1} << 20, 'M'},
        std::pair{std::size_t{1} << 10, 'K'}}) {
    if (bytes >= unit && bytes % unit == 0) return fmt::format("{}{}", bytes / unit, letter);
  }
  return fmt::format("{}", bytes);
}

}  // namespace

/// What a row is about.
struct Measurement::Case {
  Mode mode;
  Shape shape;
  std::size_t count;
  std::size_t bytes;
  const char* tag;  ///< null in the exact mode
  std::string name;
};

void Measurement::Free::operator()(void* memory) const {
  std::free(memory);
}

Measurement::Memory Measurement::allocate(std::size_t bytes) {
  constexpr std::size_t kAlignment = 4096;
  Memory memory(std::aligned_alloc(kAlignment, (bytes / kAlignment + 1) * kAlignment));
  if (!memory) throw std::bad_alloc();
  return memory;
}

Measurement::Measurement(Job& job, const Options& options, Progress& progress)
    : job_(job),
      options_(options),
      progress_(progress),
      send_(allocate(options.max_bytes)),
      receive_(allocate(options.max_bytes)) {}

std::optional<Row> Measurement::run(Mode mode, DataType type, ReduceOp op, std::size_t bytes,
                                    std::string* why) {
  Case one{mode, job_.shape(type, op), bytes / size_of(type), bytes, mode == Mode::kOneBit ? kTag : nullptr,
           {}};
  one.name =
      fmt::format("{} {} {} {}", size_text(bytes), onebit::name_of(type), onebit::name_of(op), name_of(mode));
  if (mode == Mode::kOneBit && one.count > 0) {
    const std::string reason = job_.explain(type, op, send_.get(), one.count, kTag);
    if (!reason.starts_with("1bit")) {
      *why = reason;
      return std::nullopt;
    }
  }
  Row row;
  row.mode = mode;
  row.type = type;
  row.op = op;
  row.count = one.count;
  digest_ = 0;
  row.out_of_place = time(one, false, &row);
  row.in_place = time(one, true, nullptr);
  if (options_.checks > 0) verify(one, &row);
  if (mode == Mode::kOneBit) {
    measure_errors(one, &row);
  } else if (options_.checks > 0 && row.wrong() == 0) {
    row.error_1 = row.error_10 = row.error_100 = 0.0;  // every element was right
    row.error_elements = one.count;
  }
  const std::vector<std::uint64_t> digests = job_.gather(digest_);
  row.ranks_identical = std::equal(digests.begin() + 1, digests.end(), digests.begin());
  if (one.tag != nullptr) job_.reset(one.tag);
  return row;
}

void Measurement::call(const Case& one, const void* send, void* receive, std::size_t count) {
  job_.all_reduce(one.shape.type, one.shape.op, send, receive, count, one.tag);
}

void Measurement::digest(const void* data, std::size_t bytes) {
  digest_ = XXH3_64bits_withSeed(data, bytes, digest_);
}

/// A sum in place is W times larger (at most) than the one before; data begin near 1. Squares, which the
/// codec sums, must stay below the largest number too.
std::size_t Measurement::calls_before_overflow(const Case& one) const {
  if (one.shape.op == ReduceOp::kAvg || one.shape.ranks == 1 || !is_floating(one.shape.type)) {
    return SIZE_MAX;
  }
  const double digits = one.shape.type == DataType::kFloat16   ? 4
                        : one.shape.type == DataType::kFloat64 ? 140
                                                               : 15;
  return std::max<std::size_t>(1, static_cast<std::size_t>(digits / std::log10(one.shape.ranks)));
}

Timing Measurement::time(const Case& one, bool in_place, Row* row) {
  progress_.show(fmt::format("{}: {}", one.name, in_place ? "in place" : "out of place"));
  void* const receive = receive_.get();
  void* const send = in_place ? receive : send_.get();
  const auto fill = [&] {
    if (one.mode == Mode::kExact) {
      fill_known(one.shape, 0, send, one.count);
    } else {
      fill_normal(one.shape, 0, send, one.count);
    }
  };
  if (one.tag != nullptr) job_.reset(one.tag);
  fill();
  for (int i = 0; i < options_.warmup; ++i) call(one, send, receive, one.count);

  const auto calls =
      static_cast<std::size_t>(options_.iterations) * static_cast<std::size_t>(options_.aggregated);
  const std::size_t together = in_place ? calls_before_overflow(one) : calls;
  Clock::duration elapsed{};
  std::uint64_t sent = 0;
  for (std::size_t done = 0; done < calls;) {
    const std::size_t now = std::min(together, calls - done);
    if (in_place) fill();
    job_.barrier();
    const std::uint64_t sent_before = job_.stats().wire_bytes_sent;
    const Clock::time_point start = Clock::now();
    for (std::size_t i = 0; i < now; ++i) {
      call(one, send, receive, one.count);
      if (options_.blocking == 1) job_.barrier();
    }
    elapsed += Clock::now() - start;
    sent += job_.stats().wire_bytes_sent - sent_before;
    done += now;
  }
  digest(receive, one.bytes);

  struct Mine {
    double seconds;
    double sent;
  };
  const auto per_call = [calls](double total) { return total / static_cast<double>(calls); };
  std::vector<double> seconds;
  std::vector<double> wire;
  for (const Mine& mine : job_.gather(Mine{per_call(std::chrono::duration<double>(elapsed).count()),
                                           per_call(static_cast<double>(sent))})) {
    seconds.push_back(mine.seconds);
    wire.push_back(mine.sent);
  }
  if (row != nullptr) {
    row->wire_bytes = combine(wire, TimeOf::kAverage);
    row->wire_bytes_max = combine(wire, TimeOf::kMaximum);
  }
  const double ranks = one.shape.ranks;
  Timing timing;
  timing.seconds = combine(seconds, options_.time_of);
  if (timing.seconds > 0) timing.algbw = static_cast<double>(one.bytes) / 1e9 / timing.seconds;
  timing.busbw = timing.algbw * 2 * (ranks - 1) / ranks;
  return timing;
}

void Measurement::verify(const Case& one, Row* row) {
  progress_.show(one.name + ": checking");
  for (const bool in_place : {false, true}) {
    std::uint64_t all_wrong = 0;
    for (int i = 0; i < options_.checks && all_wrong == 0; ++i) {
      void* const receive = receive_.get();
      void* const send = in_place ? receive : send_.get();
      const std::uint64_t salt = salt_++;
      const bool exact = one.mode == Mode::kExact;
      if (one.tag != nullptr) job_.reset(one.tag);
      (exact ? fill_known : fill_signs)(one.shape, salt, send, one.count);
      call(one, send, receive, one.count);
      digest(receive, one.bytes);
      const std::uint64_t wrong =
          (exact ? count_wrong : count_wrong_signs)(one.shape, salt, receive, one.count);
      const std::vector<std::uint64_t> wrongs = job_.gather(wrong);
      all_wrong = std::accumulate(wrongs.begin(), wrongs.end(), std::uint64_t{0});
    }
    (in_place ? row->in_place : row->out_of_place).wrong = all_wrong;
  }
}

void Measurement::measure_errors(const Case& one, Row* row) {
  const std::size_t count = std::min(one.count, options_.error_elements);
  if (count == 0) return;
  const DataType type = one.shape.type;
  // What is to come out, in fp64: the sum over the ranks of what this rank's elements really are, by an exact
  // call.
  const Memory input = allocate(count * size_of(type));
  const Memory output = allocate(count * size_of(type));
  fill_normal(one.shape, kErrorSeed, input.get(), count);
  std::vector<double> expected(count);
  add_to(type, input.get(), count, expected.data());
  job_.all_reduce(DataType::kFloat64, one.shape.op, expected.data(), expected.data(), count, nullptr);

  job_.reset(one.tag);
  std::vector<double> sums(job_.rank() == 0 ? count : 0);
  for (int calls = 1; calls <= 100; ++calls) {
    if (calls % 10 == 1) progress_.show(fmt::format("{}: error, {} of 100 calls", one.name, calls - 1));
    call(one, input.get(), output.get(), count);
    if (job_.rank() != 0) continue;
    add_to(type, output.get(), count, sums.data());
    if (calls == 1) row->error_1 = relative_error(sums, expected, calls);
    if (calls == 10) row->error_10 = relative_error(sums, expected, calls);
    if (calls == 100) row->error_100 = relative_error(sums, expected, calls);
  }
  row->error_elements = count;
  digest(output.get(), count * size_of(type));
}

}  // namespace onebit::perf
