// decode for a SIMD target: y is +scale or -scale, already in y's type, chosen by a bit. Elements are single
// numbers until y is aligned to a vector; then each vector is written whole, also where a block ends inside
// it, so that large outputs can go past the caches (a store to a line that is not written whole would read it
// first). Included by kernels.cc alone, once a target. Pure functions, any thread.

HWY_BEFORE_NAMESPACE();
namespace onebit::codec::HWY_NAMESPACE {

/// Outputs of at least this many bytes go past the caches.
constexpr std::size_t kStreamBytes = std::size_t{1} << 20;

/// The two values of a block, as the bits of y's type.
template <typename T>
struct Values {
  T plus, minus;
};

template <typename T>
HWY_INLINE Values<T> values_of(DataType type, float scale) {
  if constexpr (sizeof(T) == 4) {
    if (std::isnan(scale)) return {kNanBits, kNanBits};
    return {std::bit_cast<std::uint32_t>(scale), std::bit_cast<std::uint32_t>(-scale)};
  } else {
    if (type == DataType::kFloat16) return {float_to_half(scale), float_to_half(-scale)};
    return {float_to_bfloat16(scale), float_to_bfloat16(-scale)};
  }
}

template <typename T, bool kStream>
HWY_INLINE void decode_elements(DataType type, Packed piece, std::size_t n, std::size_t block, T* y) {
  const hn::CappedTag<T, 32> d;  // 32 bits and the offset of the first in its byte fit a 64-bit word
  const std::size_t step = hn::Lanes(d);
  const auto values_at = [&](std::size_t b) { return values_of<T>(type, load_scale(piece.scales, b)); };
  const auto decode_one = [&](std::size_t i) {
    const Values<T> values = values_at(i / block);
    y[i] = (piece.bits[i / 8] >> (i % 8) & 1) != 0 ? values.plus : values.minus;
  };
  const auto decode_vector = [&](std::size_t i, hn::Vec<decltype(d)> plus, hn::Vec<decltype(d)> minus)
                                 HWY_ATTR {
                                   std::uint64_t word;
                                   std::memcpy(&word, piece.bits + i / 8, 8);
                                   word >>= i % 8;
                                   std::uint8_t local[8];
                                   std::memcpy(local, &word, 8);
                                   const auto value = hn::IfThenElse(hn::LoadMaskBits(d, local), plus, minus);
                                   if (kStream) {
                                     hn::Stream(value, d, y + i);
                                   } else {
                                     hn::Store(value, d, y + i);
                                   }
                                 };

  const std::size_t vector_bytes = step * sizeof(T);
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(y) % vector_bytes;
  const std::size_t head = std::min(n, misaligned == 0 ? 0 : (vector_bytes - misaligned) / sizeof(T));
  // A vector may be read up to here: its word is inside the bits.
  const std::size_t end = bit_bytes(n) < 8 ? 0 : (bit_bytes(n) - 8) * 8 + 8;
  std::size_t i = 0;
  for (; i < head; ++i) decode_one(i);
  for (; i < end && i + step <= n;) {
    const std::size_t b = i / block;
    const Values<T> values = values_at(b);
    const auto plus = hn::Set(d, values.plus);
    const auto minus = hn::Set(d, values.minus);
    const std::size_t block_end = std::min(n, (b + 1) * block);
    for (; i < end && i + step <= block_end; i += step) decode_vector(i, plus, minus);
    if (i < end && i < block_end && i + step <= n) {  // the vector across two blocks
      const Values<T> next = values_at(b + 1);
      const auto mine = hn::FirstN(d, block_end - i);
      decode_vector(i, hn::IfThenElse(mine, plus, hn::Set(d, next.plus)),
                    hn::IfThenElse(mine, minus, hn::Set(d, next.minus)));
      i += step;
    }
  }
  if (kStream) hwy::FlushStream();
  for (; i < n; ++i) decode_one(i);
}

template <typename T>
HWY_INLINE void decode_as(DataType type, Packed piece, std::size_t n, std::size_t block, void* y) {
  if (n * sizeof(T) >= kStreamBytes) {
    decode_elements<T, true>(type, piece, n, block, static_cast<T*>(y));
  } else {
    decode_elements<T, false>(type, piece, n, block, static_cast<T*>(y));
  }
}

ONEBIT_CODEC_KERNEL void decode(DataType type, Packed piece, std::size_t n, Parameters parameters,
                                void* y) noexcept {
  if (n == 0) return;
  const std::size_t block = parameters.block == kWhole ? n : parameters.block;
  if (type == DataType::kFloat32) {
    decode_as<std::uint32_t>(type, piece, n, block, y);
  } else {
    decode_as<std::uint16_t>(type, piece, n, block, y);
  }
}

}  // namespace onebit::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
