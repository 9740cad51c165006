// Inputs for the codec's tests: deterministic numbers of each kind that matters, in buffers whose end is
// exact.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "codec/codec.h"
#include "codec/convert.h"

namespace onebit::codec::test {

/// Sebastiano Vigna's splitmix64: the test vectors' generator too (docs/format.md).
class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  /// In [-1, 1), a multiple of 2^-23.
  float uniform() { return static_cast<float>(static_cast<std::int64_t>(next()) >> 40) * 0x1p-23f; }

 private:
  std::uint64_t state_;
};

/// An array of `bytes` bytes, `offset` bytes after an address aligned to 64: an access beyond its end is an
/// error that the address sanitizer sees.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes, std::size_t offset = 0)
      : bytes_(bytes),
        offset_(offset),
        data_(static_cast<std::byte*>(::operator new(bytes + offset, kAlign))) {
    std::memset(data_.get(), 0xa5, bytes + offset);
  }
  Buffer(const Buffer& other) : Buffer(other.bytes_, other.offset_) {
    std::memcpy(data(), other.data(), bytes_);
  }
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return data_.get() + offset_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data());
  }
  std::size_t size() const { return bytes_; }
  friend bool operator==(const Buffer& a, const Buffer& b) {
    return a.bytes_ == b.bytes_ && std::memcmp(a.data(), b.data(), a.bytes_) == 0;
  }

 private:
  static constexpr std::align_val_t kAlign{64};
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, kAlign); }
  };
  std::size_t bytes_, offset_;
  std::unique_ptr<std::byte[], Free> data_;
};

enum class Kind { kRandom, kWideRange, kSubnormal, kHuge, kZero, kNegativeZero, kNan, kInfinity, kMixed };
constexpr Kind kKinds[] = {Kind::kRandom,       Kind::kWideRange, Kind::kSubnormal, Kind::kHuge, Kind::kZero,
                           Kind::kNegativeZero, Kind::kNan,       Kind::kInfinity,  Kind::kMixed};

inline std::string name_of(Kind kind) {
  switch (kind) {
    case Kind::kRandom:
      return "random";
    case Kind::kWideRange:
      return "wide range";
    case Kind::kSubnormal:
      return "subnormal";
    case Kind::kHuge:
      return "huge";
    case Kind::kZero:
      return "zero";
    case Kind::kNegativeZero:
      return "negative zero";
    case Kind::kNan:
      return "nan";
    case Kind::kInfinity:
      return "infinity";
    case Kind::kMixed:
      return "mixed";
  }
  return "";
}

/// Number i of an array of that kind. kNan and kInfinity are random with a special number every 1000 or so
/// elements.
inline float number(Kind kind, SplitMix64& random, std::size_t i) {
  const float u = random.uniform();
  switch (kind) {
    case Kind::kRandom:
      return u;
    case Kind::kWideRange:
      return std::ldexp(u, static_cast<int>(random.next() % 60) - 30);
    case Kind::kSubnormal:
      return u * 0x1p-127f;
    case Kind::kHuge:
      return u * std::numeric_limits<float>::max();
    case Kind::kZero:
      return 0.0f;
    case Kind::kNegativeZero:
      return -0.0f;
    case Kind::kNan:
      return random.next() % 1000 == 0 ? std::numeric_limits<float>::quiet_NaN() : u;
    case Kind::kInfinity: {
      if (random.next() % 1000 != 0) return u;
      return std::copysign(std::numeric_limits<float>::infinity(), u);
    }
    case Kind::kMixed:
      return number(kKinds[(i / 700 + random.next() % 50 / 49) % 8], random, i);
  }
  return 0;
}

/// n numbers as `type`.
inline Buffer numbers(DataType type, Kind kind, std::size_t n, std::uint64_t seed, std::size_t offset = 0) {
  SplitMix64 random(seed);
  Buffer out(n * size_of(type), offset);
  for (std::size_t i = 0; i < n; ++i) {
    // memcpy, as scales need no alignment.
    const float value = number(kind, random, i);
    if (type == DataType::kFloat32) {
      std::memcpy(out.data() + 4 * i, &value, 4);
    } else {
      const std::uint16_t narrow =
          type == DataType::kFloat16 ? float_to_half(value) : float_to_bfloat16(value);
      std::memcpy(out.data() + 2 * i, &narrow, 2);
    }
  }
  return out;
}

inline Buffer random_bytes(std::size_t bytes, std::uint64_t seed, std::size_t offset = 0) {
  SplitMix64 random(seed);
  Buffer out(bytes, offset);
  for (std::size_t i = 0; i < bytes; ++i) out.data()[i] = static_cast<std::byte>(random.next());
  return out;
}

constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16};
constexpr Scale kScales[] = {Scale::kRms, Scale::kMean};

/// Counts around each multiple that a kernel may treat on its own, from 0 to a little over two rows of lanes.
inline std::vector<std::size_t> counts_of_every_end() {
  std::vector<std::size_t> counts;
  for (std::size_t n = 0; n <= 620; ++n) counts.push_back(n);
  for (std::size_t base : {2048u, 4096u, 6144u, 65536u}) {
    for (std::size_t n :
         {base - 65, base - 17, base - 8, base - 1, base + 0, base + 1, base + 7, base + 33}) {
      counts.push_back(n);
    }
  }
  return counts;
}

/// The implementations that a program of the suites tests: the processor's, or CUDA's. Defined by the file
/// that is linked with them.
std::vector<const Implementation*> implementations_under_test();

/// Names of the implementations other than the reference, as parameters of a test.
inline std::vector<std::string> simd_names() {
  std::vector<std::string> names;
  for (const Implementation& implementation : implementations().subspan(1))
    names.emplace_back(implementation.name);
  return names;
}

inline std::vector<std::string> all_names() {
  std::vector<std::string> names = simd_names();
  names.insert(names.begin(), "scalar");
  return names;
}

/// Names the instances of a suite.
struct NameOfImplementation {
  std::string operator()(const auto& parameter) const { return std::string(parameter.param->name); }
};

}  // namespace onebit::codec::test
