// A step of each optimizer without its exchange (one rank) against passes that only move the bytes that its
// maths must move, on the same threads, in one run.
//
// Bytes an element, weight decay included. Norms and factors need all of a tensor before its weights can
// move, and what is exchanged is done before and used after: so these are separate passes.
//   OneBitLamb, compressed: g m -> x;  m w;  m v w -> w                  36 bytes
//   OneBitAdam, compressed: g m -> x;  m v w -> w                        28
//   Lamb:                   g -> x;    x m v w -> m v;  m v w -> w       48
//   Adam:                   g -> x;    x m v w -> m v w                  36
// --json FILE writes the table.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "perf/optimizer_bench.cc"
#include "hwy/foreach_target.h"
// The order matters to highway: foreach_target.h first.
#include "hwy/highway.h"

#ifndef ONEBIT_PERF_OPTIMIZER_BENCH_ONCE
#define ONEBIT_PERF_OPTIMIZER_BENCH_ONCE
#include <CLI/CLI.hpp>
#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>

#include "base/settings.h"
#include "bootstrap/rendezvous.h"
#include "collective/communicator.h"
#include "optimizer/optimizer.h"
#include "perf/interleaved_bench.h"

namespace onebit::perf {
/// A pass: which arrays it reads and which it writes.
struct Streams {
  std::vector<const float*> reads;
  std::vector<float*> writes;
};
}  // namespace onebit::perf
#endif

HWY_BEFORE_NAMESPACE();
namespace onebit::perf::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Every element that is written is a sum of those that are read.
template <std::size_t kReads, std::size_t kWrites>
HWY_INLINE void move_of(const Streams& streams, std::size_t begin, std::size_t end) {
  const hn::ScalableTag<float> f;
  const float* reads[kReads];
  float* writes[kWrites];
  std::copy_n(streams.reads.begin(), kReads, reads);
  std::copy_n(streams.writes.begin(), kWrites, writes);
  auto total = hn::Zero(f);
  for (std::size_t i = begin; i < end; i += hn::Lanes(f)) {
    auto sum = hn::Zero(f);
    for (std::size_t k = 0; k < kReads; ++k) sum = hn::Add(sum, hn::LoadU(f, reads[k] + i));
    for (std::size_t k = 0; k < kWrites; ++k) hn::StoreU(sum, f, writes[k] + i);
    if constexpr (kWrites == 0) total = hn::Add(total, sum);
  }
  benchmark::DoNotOptimize(hn::GetLane(total));
}

/// `begin` and `end` are multiples of 64.
void move(const Streams& streams, std::size_t begin, std::size_t end) {
  const std::size_t reads = streams.reads.size();
  const std::size_t writes = streams.writes.size();
  if (reads == 1) return move_of<1, 1>(streams, begin, end);
  if (reads == 2 && writes == 0) return move_of<2, 0>(streams, begin, end);
  if (reads == 2) return move_of<2, 1>(streams, begin, end);
  if (reads == 3) return move_of<3, 1>(streams, begin, end);
  if (writes == 2) return move_of<4, 2>(streams, begin, end);
  move_of<4, 3>(streams, begin, end);
}

}  // namespace onebit::perf::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onebit::perf {
namespace {

HWY_EXPORT(move);

using optimizer::Kind;

struct Options {
  std::size_t elements = std::size_t{1} << 25;
  std::size_t tensor = std::size_t{1} << 20;
  int repetitions = 9;
  std::uint32_t threads = 0;
  std::string json;
};

template <typename T>
T value_of(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().message());
  return std::move(*result);
}

void check(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

std::unique_ptr<collective::Communicator> lone_communicator(std::uint32_t threads) {
  Settings settings = value_of(Settings::from_environment());
  check(apply_settings(settings, fmt::format("ONEBIT_SOCKET_IFNAME=lo\nONEBIT_THREADS={}", threads)));
  const auto id = value_of(bootstrap::create_unique_id(settings));
  return value_of(collective::Communicator::create(value_of(bootstrap::Rendezvous::join(id, 0, 1, settings)),
                                                   "bench", settings));
}

/// An optimizer in the stage that is measured.
class Subject {
 public:
  Subject(Kind kind, const Options& options, collective::Communicator& communicator)
      : weights_(options.elements), gradients_(options.elements) {
    std::minstd_rand random(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (float& w : weights_) w = uniform(random);
    for (float& g : gradients_) g = uniform(random);
    std::vector<optimizer::TensorSpec> tensors;
    for (std::size_t at = 0; at < options.elements; at += options.tensor) {
      optimizer::TensorSpec tensor;
      tensor.parameters = weights_.data() + at;
      tensor.count = std::min(options.tensor, options.elements - at);
      tensors.push_back(tensor);
      pointers_.push_back(gradients_.data() + at);
    }
    optimizer::Options hyper = optimizer::default_options(kind);
    hyper.all.weight_decay = 0.01;
    hyper.freeze_step = 1;
    optimizer_ = value_of(
        optimizer::Optimizer::create(hyper, std::move(tensors), optimizer::make_exchange(communicator)));
    step();
  }
  void step() {
    bool skipped = false;
    check(optimizer_->step(pointers_, &skipped));
    if (skipped) throw std::runtime_error("a step was skipped");
  }

 private:
  std::vector<float> weights_, gradients_;
  std::vector<const void*> pointers_;
  std::unique_ptr<optimizer::Optimizer> optimizer_;
};

/// The arrays of the baselines, and their passes.
class Baseline {
 public:
  Baseline(std::size_t elements, collective::Communicator& communicator)
      : elements_(elements), communicator_(communicator) {
    for (auto& array : arrays_) array.assign(elements, 0.5F);
  }
  Streams streams(std::string_view reads, std::string_view writes) {
    Streams made;
    for (const char each : reads) made.reads.push_back(array(each));
    for (const char each : writes) made.writes.push_back(array(each));
    return made;
  }
  void run(const std::vector<Streams>& passes) const {
    constexpr std::size_t kPart = 32 * 1024;
    for (const Streams& pass : passes) {
      communicator_.parallel((elements_ + kPart - 1) / kPart, [&](std::size_t part) {
        HWY_DYNAMIC_DISPATCH(move)(pass, part * kPart, std::min(elements_, (part + 1) * kPart));
      });
    }
  }

 private:
  float* array(char name) { return arrays_[std::string_view("gxmvfw").find(name)].data(); }
  std::size_t elements_;
  collective::Communicator& communicator_;
  std::array<std::vector<float>, 6> arrays_;
};

void measure(const Options& options, const char* program) {
  const auto communicator = lone_communicator(options.threads);
  Baseline baseline(options.elements, *communicator);
  const struct {
    Kind kind;
    std::vector<Streams> passes;
  } cases[] = {
      {Kind::kOneBitLamb,
       {baseline.streams("gm", "x"), baseline.streams("mw", ""), baseline.streams("mvw", "w")}},
      {Kind::kOneBitAdam, {baseline.streams("gm", "x"), baseline.streams("mvw", "w")}},
      {Kind::kLamb,
       {baseline.streams("g", "x"), baseline.streams("xmvw", "mv"), baseline.streams("mvw", "w")}},
      {Kind::kAdam, {baseline.streams("g", "x"), baseline.streams("xmvw", "mvw")}},
  };
  std::vector<Row> rows;
  std::vector<std::unique_ptr<Subject>> subjects;
  for (const auto& each : cases) {
    std::size_t words = 0;
    for (const Streams& pass : each.passes) words += pass.reads.size() + pass.writes.size();
    rows.push_back({std::string(name_of(each.kind)), fmt::format("{} bytes", 4 * words)});
    subjects.push_back(std::make_unique<Subject>(each.kind, options, *communicator));
    add_benchmark(rows.back().kernel, options.elements, options.repetitions, true,
                  [subject = subjects.back().get()] { subject->step(); });
    add_benchmark(rows.back().baseline, options.elements, options.repetitions, true,
                  [&baseline, passes = each.passes] { baseline.run(passes); });
  }
  const Collector collector = run_interleaved(program);
  fmt::print("{} elements in tensors of {}, medians of {} interleaved repetitions\n", options.elements,
             options.tensor, options.repetitions);
  const nlohmann::json table = print_rows(rows, collector);
  write_json(options.json, {{"elements", options.elements},
                            {"tensor", options.tensor},
                            {"repetitions", options.repetitions},
                            {"rows", table}});
}

}  // namespace
}  // namespace onebit::perf

int main(int argc, char** argv) {
  onebit::perf::Options options;
  CLI::App app("Steps of optimizers next to passes that move the same bytes");
  app.add_option("--elements", options.elements, "Parameters, rounded up to a multiple of 64")
      ->check(CLI::PositiveNumber);
  app.add_option("--tensor", options.tensor, "Parameters a tensor")->check(CLI::PositiveNumber);
  app.add_option("--repetitions", options.repetitions, "Repetitions of each benchmark")
      ->check(CLI::PositiveNumber);
  app.add_option("--threads", options.threads,
                 "Compute threads beside the calling one; 0 = as ONEBIT_THREADS");
  app.add_option("--json", options.json, "Also write the table to this file");
  CLI11_PARSE(app, argc, argv);
  options.elements = (options.elements + 63) / 64 * 64;
  try {
    onebit::perf::measure(options, argv[0]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "optimizer_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
#endif  // HWY_ONCE
