// The codec against passes that only move the same bytes, in one run: encode against a triad, decode against
// a non-temporal fill, average against a pass that reads and writes what it reads and writes. One thread,
// arrays far above the caches, processor time. Repetitions are interleaved at random, so that noise hits a
// kernel and its baseline alike; the table at the end has medians, their ratio, and the ratio of the quietest
// repetitions; --json FILE writes it.
//
// The baselines are compiled by google/highway for each SIMD target, like the codec, and run on the best.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "perf/codec_bench.cc"
#include "hwy/foreach_target.h"
// The order matters to highway: foreach_target.h first.
#include "hwy/cache_control.h"
#include "hwy/highway.h"

#ifndef ONEBIT_PERF_CODEC_BENCH_ONCE
#define ONEBIT_PERF_CODEC_BENCH_ONCE
#include <fmt/format.h>
#include <sys/mman.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "codec/codec.h"
#include "perf/interleaved_bench.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace onebit::perf::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kStep = 64;  // elements; n is a multiple of it

/// error = error / 2 + x, and one bit an element: the loads and stores of encode. kElement: bytes of an
/// element of x.
template <std::size_t kElement>
HWY_NOINLINE void triad_of(const std::uint8_t* x, float* error, std::uint8_t* bits, std::size_t n) {
  const hn::ScalableTag<float> f;
  const hn::Rebind<std::uint16_t, decltype(f)> narrow;
  const hn::RebindToUnsigned<decltype(f)> u;
  const auto half = hn::Set(f, 0.5f);
  for (std::size_t i = 0; i < n; i += kStep) {
    for (std::size_t l = 0; l < kStep; l += hn::Lanes(f)) {
      const std::uint8_t* const at = x + (i + l) * kElement;
      hn::Vec<decltype(f)> value;
      if constexpr (kElement == 4) {
        value = hn::LoadU(f, reinterpret_cast<const float*>(at));
      } else {
        const auto bits16 = hn::LoadU(narrow, reinterpret_cast<const std::uint16_t*>(at));
        value = hn::BitCast(f, hn::ShiftLeft<16>(hn::PromoteTo(u, bits16)));
      }
      hn::StoreU(hn::MulAdd(hn::LoadU(f, error + i + l), half, value), f, error + i + l);
    }
    const std::uint64_t word = i;
    std::memcpy(bits + i / 8, &word, 8);
  }
}

void triad32(const std::uint8_t* x, float* error, std::uint8_t* bits, std::size_t n) {
  triad_of<4>(x, error, bits, n);
}
void triad16(const std::uint8_t* x, float* error, std::uint8_t* bits, std::size_t n) {
  triad_of<2>(x, error, bits, n);
}

/// Writes `bytes` bytes past the caches.
void fill(std::uint8_t* y, std::size_t bytes) {
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t step = hn::Lanes(d);
  const auto value = hn::Set(d, 0x3f);
  for (std::size_t i = 0; i < bytes; i += 4 * step) {
    hn::Stream(value, d, y + i);
    hn::Stream(value, d, y + i + step);
    hn::Stream(value, d, y + i + 2 * step);
    hn::Stream(value, d, y + i + 3 * step);
  }
  hwy::FlushStream();
}

/// Reads the bits of `world` pieces and the error, writes the error and one bit an element: the bytes of
/// average.
void pass(const std::uint8_t* const* pieces, std::size_t world, float* error, std::uint8_t* bits,
          std::size_t n) {
  const hn::ScalableTag<float> f;
  for (std::size_t i = 0; i < n; i += kStep) {
    std::uint64_t all = 0;
    for (std::size_t r = 0; r < world; ++r) {
      std::uint64_t word;
      std::memcpy(&word, pieces[r] + i / 8, 8);
      all ^= word;
    }
    for (std::size_t l = 0; l < kStep; l += hn::Lanes(f)) {
      hn::StoreU(hn::Neg(hn::LoadU(f, error + i + l)), f, error + i + l);
    }
    std::memcpy(bits + i / 8, &all, 8);
  }
}

}  // namespace onebit::perf::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onebit::perf {
namespace {

HWY_EXPORT(triad32);
HWY_EXPORT(triad16);
HWY_EXPORT(fill);
HWY_EXPORT(pass);

constexpr std::uint32_t kBlock = 2048;
constexpr std::size_t kMaxWorld = 8;

struct Options {
  std::size_t elements = std::size_t{1} << 26;
  int repetitions = 9;
  std::uint32_t block = kBlock;
  bool huge_pages = false;
  std::string json;
  std::vector<std::string> implementations;
};

/// Memory of its own pages, written once before use.
template <typename T>
class Array {
 public:
  Array(std::size_t count, bool huge_pages) : bytes_(count * sizeof(T)) {
    void* const p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    if (huge_pages) madvise(p, bytes_, MADV_HUGEPAGE);
    std::memset(p, 0, bytes_);
    data_ = static_cast<T*>(p);
  }
  Array(Array&& other) noexcept
      : bytes_(std::exchange(other.bytes_, 0)), data_(std::exchange(other.data_, nullptr)) {}
  Array& operator=(Array&&) = delete;
  ~Array() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  T* get() const { return data_; }

 private:
  std::size_t bytes_;
  T* data_ = nullptr;
};

/// The arrays that all benchmarks share.
struct Arrays {
  explicit Arrays(const Options& options)
      : x(options.elements, options.huge_pages),
        x16(options.elements, options.huge_pages),
        error(options.elements, options.huge_pages),
        y(options.elements, options.huge_pages) {
    std::minstd_rand random(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (std::size_t i = 0; i < options.elements; ++i) {
      x.get()[i] = uniform(random);
      x16.get()[i] = static_cast<std::uint16_t>(0x3c00 + random() % 0x100 + random() % 2 * 0x8000);
    }
    for (std::size_t r = 0; r <= kMaxWorld; ++r) {
      scales.emplace_back(4 * codec::scale_count(options.elements, options.block), options.huge_pages);
      bits.emplace_back(codec::bit_bytes(options.elements), options.huge_pages);
      const codec::Parameters parameters{options.block, codec::Scale::kRms};
      codec::implementations().back().encode(DataType::kFloat32, x.get(), options.elements, parameters,
                                             error.get(), scales[r].get(), bits[r].get());
      packed.push_back({scales[r].get(), bits[r].get()});
    }
  }
  Array<float> x;
  Array<std::uint16_t> x16;
  Array<float> error, y;
  std::vector<Array<std::byte>> scales;  ///< kMaxWorld pieces, and one to write
  std::vector<Array<std::uint8_t>> bits;
  std::vector<codec::Packed> packed;
};

/// Registers `body` under `name`; one iteration is a pass over the arrays.
template <typename Body>
void add(const std::string& name, const Options& options, Body body) {
  add_benchmark(name, options.elements, options.repetitions, false, body);
}

void add_baselines(const Options& options, const Arrays& arrays) {
  const std::size_t n = options.elements;
  const Arrays& a = arrays;
  std::uint8_t* const bits = a.bits.back().get();
  add("triad fp32", options, [=, &a] {
    HWY_DYNAMIC_DISPATCH(triad32)(reinterpret_cast<const std::uint8_t*>(a.x.get()), a.error.get(), bits, n);
  });
  add("triad 16 bits", options, [=, &a] {
    HWY_DYNAMIC_DISPATCH(triad16)(reinterpret_cast<const std::uint8_t*>(a.x16.get()), a.error.get(), bits, n);
  });
  add("fill fp32", options, [=, &a] {
    HWY_DYNAMIC_DISPATCH(fill)(reinterpret_cast<std::uint8_t*>(a.y.get()), 4 * n);
  });
  add("fill 16 bits", options, [=, &a] {
    HWY_DYNAMIC_DISPATCH(fill)(reinterpret_cast<std::uint8_t*>(a.y.get()), 2 * n);
  });
  for (std::size_t world : {2u, 4u, 8u}) {
    add(fmt::format("pass of {}", world), options, [=, &a] {
      const std::uint8_t* pieces[kMaxWorld];
      for (std::size_t r = 0; r < world; ++r) pieces[r] = a.bits[r].get();
      HWY_DYNAMIC_DISPATCH(pass)(pieces, world, a.error.get(), bits, n);
    });
  }
}

std::vector<Row> add_kernels(const Options& options, const Arrays& arrays) {
  const std::size_t n = options.elements;
  const codec::Parameters parameters{options.block, codec::Scale::kRms};
  const Arrays& a = arrays;
  std::byte* const scales = a.scales.back().get();
  std::uint8_t* const bits = a.bits.back().get();
  std::vector<Row> rows;
  const auto add_row = [&](std::string_view what, std::string_view by, std::string baseline, auto body) {
    rows.push_back({fmt::format("{} {}", what, by), std::move(baseline)});
    add(rows.back().kernel, options, body);
  };
  for (const codec::Implementation& implementation : codec::implementations()) {
    const codec::Implementation* const by = &implementation;
    if (!options.implementations.empty() &&
        std::find(options.implementations.begin(), options.implementations.end(), by->name) ==
            options.implementations.end()) {
      continue;
    }
    add_row("encode fp32", by->name, "triad fp32", [=, &a] {
      by->encode(DataType::kFloat32, a.x.get(), n, parameters, a.error.get(), scales, bits);
    });
    add_row("encode fp16", by->name, "triad 16 bits", [=, &a] {
      by->encode(DataType::kFloat16, a.x16.get(), n, parameters, a.error.get(), scales, bits);
    });
    add_row("encode bf16", by->name, "triad 16 bits", [=, &a] {
      by->encode(DataType::kBFloat16, a.x16.get(), n, parameters, a.error.get(), scales, bits);
    });
    add_row("decode fp32", by->name, "fill fp32",
            [=, &a] { by->decode(DataType::kFloat32, a.packed[0], n, parameters, a.y.get()); });
    add_row("decode fp16", by->name, "fill 16 bits",
            [=, &a] { by->decode(DataType::kFloat16, a.packed[0], n, parameters, a.y.get()); });
    for (std::size_t world : {2u, 4u, 8u}) {
      add_row(fmt::format("average of {}", world), by->name, fmt::format("pass of {}", world), [=, &a] {
        by->average({a.packed.data(), world}, n, 1.0f / static_cast<float>(world), parameters, a.error.get(),
                    scales, bits);
      });
    }
  }
  return rows;
}

void report(const Options& options, const std::vector<Row>& rows, const Collector& collector) {
  fmt::print("{} elements, block {}, medians of {} interleaved repetitions, 1 thread\n", options.elements,
             options.block, options.repetitions);
  const nlohmann::json table = print_rows(rows, collector);
  write_json(options.json, {{"elements", options.elements},
                            {"block", options.block},
                            {"repetitions", options.repetitions},
                            {"huge_pages", options.huge_pages},
                            {"rows", table}});
}

}  // namespace
}  // namespace onebit::perf

int main(int argc, char** argv) {
  using namespace onebit::perf;
  Options options;
  CLI::App app("The codec's kernels next to passes that move the same bytes");
  app.add_option("--elements", options.elements, "Elements of each array, rounded up to a multiple of 256")
      ->check(CLI::PositiveNumber);
  app.add_option("--repetitions", options.repetitions, "Repetitions of each benchmark")
      ->check(CLI::PositiveNumber);
  app.add_option("--block", options.block, "Elements a block")->check(CLI::PositiveNumber);
  app.add_option("--implementations", options.implementations, "Only these, such as avx2 avx512");
  app.add_flag("--huge-pages", options.huge_pages, "Ask for transparent huge pages");
  app.add_option("--json", options.json, "Also write the table to this file");
  CLI11_PARSE(app, argc, argv);
  options.elements = (options.elements + 255) / 256 * 256;

  const Arrays arrays(options);
  add_baselines(options, arrays);
  const std::vector<Row> rows = add_kernels(options, arrays);
  report(options, rows, run_interleaved(argv[0]));
  return 0;
}
#endif  // HWY_ONCE
