#include "inputs.h"

#include <bit>
#include <cmath>

namespace onebit::perf {
namespace {

/// 64 well mixed bits of (salt, i). The finaliser of splitmix64.
std::uint64_t hash(std::uint64_t salt, std::uint64_t i) {
  std::uint64_t z = (i + 1) * 0x9E3779B97F4A7C15u + salt * 0xD1B54A32D192ED03u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >>
                                    16);  // to nearest even; no NaN comes here
}
float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// To nearest even. No NaN comes here.
std::uint16_t to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000);
  const float magnitude = std::fabs(value);
  if (magnitude >= 65520.0f) return sign | 0x7C00;
  if (magnitude < 0x1p-14f) {  // a subnormal of fp16: a multiple of 2^-24
    return sign | static_cast<std::uint16_t>(std::nearbyint(magnitude * 0x1p24f));
  }
  const std::uint32_t rounded = (bits & 0x7FFFFFFF) + 0xFFF + ((bits >> 13) & 1);
  return sign | static_cast<std::uint16_t>((rounded - (112u << 23)) >> 13);
}
float from_float16(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const auto fraction = static_cast<float>(bits & 0x3FF);
  float value = exponent == 0    ? fraction * 0x1p-24f
                : exponent == 31 ? (fraction == 0 ? INFINITY : NAN)
                                 : std::ldexp(1024.0f + fraction, exponent - 25);
  return (bits & 0x8000) != 0 ? -value : value;
}

// One reader and writer of elements a type, so that the loops below are compiled for each.
template <typename T>
struct Plain {
  using Element = T;
  static T make(double value) { return static_cast<T>(value); }
  static double read(T element) { return static_cast<double>(element); }
};
struct Half {
  using Element = std::uint16_t;
  static Element make(double value) { return to_float16(static_cast<float>(value)); }
  static double read(Element element) { return from_float16(element); }
};
struct Bfloat16 {
  using Element = std::uint16_t;
  static Element make(double value) { return to_bfloat16(static_cast<float>(value)); }
  static double read(Element element) { return from_bfloat16(element); }
};

/// Calls body with the reader and writer of `type`.
template <typename Body>
auto with_type(DataType type, Body body) {
  switch (type) {
    case DataType::kInt32:
      return body(Plain<std::int32_t>{});
    case DataType::kInt64:
      return body(Plain<std::int64_t>{});
    case DataType::kFloat16:
      return body(Half{});
    case DataType::kBFloat16:
      return body(Bfloat16{});
    case DataType::kFloat64:
      return body(Plain<double>{});
    case DataType::kFloat32:
      break;
  }
  return body(Plain<float>{});
}

/// data[i] = make(value(i)).
template <typename Value>
void fill(DataType type, void* data, std::size_t count, Value value) {
  with_type(type, [&](auto format) {
    using Format = decltype(format);
    auto* elements = static_cast<typename Format::Element*>(data);
    for (std::size_t i = 0; i < count; ++i) elements[i] = Format::make(value(i));
  });
}

/// How many data[i] do not satisfy right(i, data[i]).
template <typename Right>
std::size_t count_if_not(DataType type, const void* data, std::size_t count, Right right) {
  return with_type(type, [&](auto format) {
    using Format = decltype(format);
    const auto* elements = static_cast<const typename Format::Element*>(data);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) {
      // Compared as values, through the same rounding as the type's.
      if (!right(i, Format::read(elements[i]),
                 [](double value) { return Format::read(Format::make(value)); }))
        ++wrong;
    }
    return wrong;
  });
}

int known_a(std::uint64_t h) {
  return static_cast<int>(h >> 60) - 8;
}
int known_c(std::uint64_t h) {
  return static_cast<int>((h >> 58) & 3) - 1;
}
int known_rank(int rank) {
  return rank % 64;
}

double sign(std::uint64_t h) {
  return (h >> 63) != 0 ? 1.0 : -1.0;
}

}  // namespace

void fill_known(const Shape& shape, std::uint64_t salt, void* data, std::size_t count) {
  const int rank = known_rank(shape.rank);
  fill(shape.type, data, count, [=](std::size_t i) {
    const std::uint64_t h = hash(salt, i);
    return known_a(h) + rank * known_c(h);
  });
}

std::size_t count_wrong(const Shape& shape, std::uint64_t salt, const void* data, std::size_t count) {
  double rank_sum = 0;
  for (int rank = 0; rank < shape.ranks; ++rank) rank_sum += known_rank(rank);
  const double ranks = shape.ranks;
  // An average is the sum times 1/W, each rounded: in fp64 for fp64, else in fp32, and then once to the type.
  const bool average = shape.op == ReduceOp::kAvg;
  const bool wide = shape.type == DataType::kFloat64;
  const float narrow_factor = 1.0f / static_cast<float>(shape.ranks);
  return count_if_not(shape.type, data, count, [=](std::size_t i, double found, auto rounded) {
    const std::uint64_t h = hash(salt, i);
    double expected = ranks * known_a(h) + rank_sum * known_c(h);
    if (average) {
      expected =
          wide ? expected * (1.0 / ranks) : static_cast<double>(static_cast<float>(expected) * narrow_factor);
    }
    return found == rounded(expected);
  });
}

void fill_signs(const Shape& shape, std::uint64_t salt, void* data, std::size_t count) {
  fill(shape.type, data, count, [=](std::size_t i) { return sign(hash(salt, i)); });
}

std::size_t count_wrong_signs(const Shape& shape, std::uint64_t salt, const void* data, std::size_t count) {
  const double magnitude = shape.op == ReduceOp::kAvg ? 1.0 : shape.ranks;
  const double tolerance = shape.type == DataType::kBFloat16  ? 1e-2
                           : shape.type == DataType::kFloat16 ? 1e-3
                                                              : 1e-5;
  return count_if_not(shape.type, data, count, [=](std::size_t i, double found, auto) {
    return std::fabs(found - sign(hash(salt, i)) * magnitude) <= tolerance * magnitude;
  });
}

void fill_normal(const Shape& shape, std::uint64_t salt, void* data, std::size_t count) {
  const std::uint64_t own = salt * 4096 + static_cast<std::uint64_t>(shape.rank);
  fill(shape.type, data, count, [=](std::size_t i) {
    // The sum of four uniform numbers of 16 bits, less its mean, over its deviation: near enough to normal.
    const std::uint64_t h = hash(own, i);
    const auto sum =
        static_cast<double>((h & 0xFFFF) + ((h >> 16) & 0xFFFF) + ((h >> 32) & 0xFFFF) + (h >> 48));
    return (sum - 131070.0) / 37836.9;
  });
}

void add_to(DataType type, const void* data, std::size_t count, double* sums) {
  with_type(type, [&](auto format) {
    using Format = decltype(format);
    const auto* elements = static_cast<const typename Format::Element*>(data);
    for (std::size_t i = 0; i < count; ++i) sums[i] += Format::read(elements[i]);
  });
}

}  // namespace onebit::perf
