// average and accumulate for a SIMD target. The first pass over a block sums the pieces in registers, a
// *unit* of four vectors at a time, and keeps z in a scratch block on the stack; the second codes z from
// there. Included by kernels.cc alone, once a target. Pure functions, any thread.

HWY_BEFORE_NAMESPACE();
namespace onebit::codec::HWY_NAMESPACE {

/// Pieces summed in one sweep over a block. With more, the sums so far wait in the destination.
constexpr std::size_t kBatch = 8;
/// Blocks up to this size use a small scratch block on the stack, larger ones one of kMaxBlock.
constexpr std::size_t kUsualBlock = 4096;

/// What a block's sweep needs of each piece of a batch.
struct Terms {
  std::size_t count;
  float plus[kBatch];                ///< scale * factor
  const std::uint8_t* bits[kBatch];  ///< of the block's first element
};

HWY_INLINE void gather_terms(std::span<const Packed> batch, std::size_t block, std::size_t first, float factor,
                             Terms& terms) {
  terms.count = batch.size();
  for (std::size_t r = 0; r < batch.size(); ++r) {
    terms.plus[r] = load_scale(batch[r].scales, block) * factor;
    terms.bits[r] = batch[r].bits + first / 8;
  }
}

/// The bits of one row of each piece of a batch, side by side, so that the sums read them by one address.
struct RowBits {
  std::uint8_t bits[kBatch][kLanes / 8];
};

/// Adds +-terms.plus[r] to the four vectors at element l of the row.
HWY_INLINE void add_term(const Terms& terms, const RowBits& row, std::size_t r, std::size_t l, VF32& c0, VF32& c1,
                         VF32& c2, VF32& c3) {
  const auto plus = hn::Set(F32(), terms.plus[r]);
  const auto minus = hn::Neg(plus);
  const std::uint8_t* bits = row.bits[r] + l / 8;
  c0 = hn::Add(c0, hn::IfThenElse(load_bits(bits, 0), plus, minus));
  c1 = hn::Add(c1, hn::IfThenElse(load_bits(bits, 1), plus, minus));
  c2 = hn::Add(c2, hn::IfThenElse(load_bits(bits, 2), plus, minus));
  c3 = hn::Add(c3, hn::IfThenElse(load_bits(bits, 3), plus, minus));
}

/// Adds all terms in their order. kCount is their number, or 0 when it is known at run time only.
template <std::size_t kCount, std::size_t kBegin = 0>
HWY_INLINE void add_terms(const Terms& terms, const RowBits& row, std::size_t l, VF32& c0, VF32& c1, VF32& c2,
                          VF32& c3) {
  if constexpr (kCount == 0) {
    for (std::size_t r = 0; r < terms.count; ++r) add_term(terms, row, r, l, c0, c1, c2, c3);
  } else if constexpr (kBegin < kCount) {
    add_term(terms, row, kBegin, l, c0, c1, c2, c3);
    add_terms<kCount, kBegin + 1>(terms, row, l, c0, c1, c2, c3);
  }
}

/// What the destination gets: sums so far (kPartial), or after the last batch c with NaNs as the codec writes them
/// (kAveraged) or z (kCompensated).
enum class Keep { kPartial, kAveraged, kCompensated };

template <Keep kKeep>
HWY_INLINE void keep(VF32 c, const float* owner_error, float* destination) {
  const F32 f;
  if (kKeep == Keep::kAveraged) {
    c = hn::IfThenElse(hn::IsNaN(c), hn::BitCast(f, hn::Set(U32(), kNanBits)), c);
  } else if (kKeep == Keep::kCompensated) {
    c = hn::Add(c, hn::LoadU(f, owner_error));
  }
  hn::StoreU(c, f, destination);
}

/// Adds a batch of terms to the sums so far (none when `begins`) over one row.
template <Keep kKeep, std::size_t kCount>
HWY_INLINE void sweep_row(const Terms& terms, const RowBits& row, bool begins, const float* owner_error,
                          float* destination) {
  const F32 f;
  const std::size_t step = hn::Lanes(f);
  for (std::size_t l = 0; l < kLanes; l += 4 * step) {
    VF32 c0 = hn::Set(f, -0.0f);  // -0 + x is x, for every x
    VF32 c1 = c0, c2 = c0, c3 = c0;
    if (!begins) {
      c0 = hn::LoadU(f, destination + l);
      c1 = hn::LoadU(f, destination + l + step);
      c2 = hn::LoadU(f, destination + l + 2 * step);
      c3 = hn::LoadU(f, destination + l + 3 * step);
    }
    add_terms<kCount>(terms, row, l, c0, c1, c2, c3);
    keep<kKeep>(c0, owner_error + l, destination + l);
    keep<kKeep>(c1, owner_error + l + step, destination + l + step);
    keep<kKeep>(c2, owner_error + l + 2 * step, destination + l + 2 * step);
    keep<kKeep>(c3, owner_error + l + 3 * step, destination + l + 3 * step);
  }
}

/// The same over elements 0..n of a block. `ahead` is called with i for each row.
template <Keep kKeep, std::size_t kCount, class Ahead>
HWY_INLINE void sweep(const Terms& terms, bool begins, std::size_t n, const float* owner_error, float* destination,
                      Ahead ahead) {
  RowBits row;
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    ahead(i);
    for (std::size_t r = 0; r < terms.count; ++r) std::memcpy(row.bits[r], terms.bits[r] + i / 8, kLanes / 8);
    sweep_row<kKeep, kCount>(terms, row, begins, owner_error + i, destination + i);
  }
  if (i < n) {
    float error[kLanes] = {};
    float sums[kLanes] = {};
    row = {};
    std::memcpy(error, owner_error + i, (n - i) * sizeof(float));
    if (!begins) std::memcpy(sums, destination + i, (n - i) * sizeof(float));
    for (std::size_t r = 0; r < terms.count; ++r) std::memcpy(row.bits[r], terms.bits[r] + i / 8, bit_bytes(n - i));
    sweep_row<kKeep, kCount>(terms, row, begins, error, sums);
    std::memcpy(destination + i, sums, (n - i) * sizeof(float));
  }
}

/// Sums the pieces over the elements first..first+n of block `block` into `destination`. owner_error and destination begin
/// at `first`.
template <Keep kKeep, class Ahead>
HWY_INLINE void average_block(std::span<const Packed> pieces, std::size_t block, std::size_t first, std::size_t n,
                              float factor, const float* owner_error, float* destination, Ahead ahead) {
  Terms terms;
  std::size_t done = 0;
  for (; done + kBatch < pieces.size(); done += kBatch) {
    gather_terms(pieces.subspan(done, kBatch), block, first, factor, terms);
    sweep<Keep::kPartial, kBatch>(terms, done == 0, n, owner_error, destination, [](std::size_t) {});
  }
  const bool begins = done == 0;
  gather_terms(pieces.subspan(done), block, first, factor, terms);
  switch (terms.count) {
    case 2: return sweep<kKeep, 2>(terms, begins, n, owner_error, destination, ahead);
    case 4: return sweep<kKeep, 4>(terms, begins, n, owner_error, destination, ahead);
    case 8: return sweep<kKeep, 8>(terms, begins, n, owner_error, destination, ahead);
    default: return sweep<kKeep, 0>(terms, begins, n, owner_error, destination, ahead);
  }
}

/// Brings a row of the owner's error and of each piece's bits near.
HWY_INLINE void prefetch_row(std::span<const Packed> pieces, std::size_t i, const float* owner_error) {
  for (std::size_t l = 0; l < kLanes; l += kLineBytes / sizeof(float)) hwy::Prefetch(owner_error + i + l);
  for (const Packed& piece : pieces) hwy::Prefetch(piece.bits + i / 8);
}

template <Scale kScale>
HWY_INLINE void average_blocks(std::span<const Packed> pieces, std::size_t n, float factor, std::size_t block,
                               float* owner_error, std::byte* scales, std::uint8_t* bits, float* scratch) {
  const std::size_t distance = AVD;
  for (std::size_t first = 0; first < n; first += block) {
    const std::size_t count = std::min(block, n - first);
    const auto ahead = [&](std::size_t i) HWY_ATTR {
      const std::size_t at = first + i + distance;
      if (at + kLanes <= n) prefetch_row(pieces, at, owner_error);
    };
    average_block<Keep::kCompensated>(pieces, first / block, first, count, factor, owner_error + first, scratch, ahead);
    const Computed source = {scratch};
    const float scale = block_scale(kScale, block_sum<kScale>(source, count, [](std::size_t) {}), count);
    store_scale(scales, first / block, scale);
    if (std::isnan(scale)) {
      set_all_bits(count, bits + first / 8);
    } else {
      quantize_block(source, count, scale, owner_error + first, bits + first / 8, [](std::size_t) {});
    }
  }
}

template <std::size_t kScratch>
HWY_NOINLINE void average_with_scratch(std::span<const Packed> pieces, std::size_t n, float factor,
                                       Parameters parameters, float* owner_error, std::byte* scales,
                                       std::uint8_t* bits) noexcept {
  HWY_ALIGN float scratch[kScratch];
  if (parameters.scale == Scale::kRms) {
    average_blocks<Scale::kRms>(pieces, n, factor, parameters.block, owner_error, scales, bits, scratch);
  } else {
    average_blocks<Scale::kMean>(pieces, n, factor, parameters.block, owner_error, scales, bits, scratch);
  }
}

ONEBIT_CODEC_KERNEL void average(std::span<const Packed> pieces, std::size_t n, float factor,
                                 Parameters parameters, float* owner_error, std::byte* scales,
                                 std::uint8_t* bits) noexcept {
  if (parameters.block <= kUsualBlock) {
    average_with_scratch<kUsualBlock>(pieces, n, factor, parameters, owner_error, scales, bits);
  } else {
    average_with_scratch<kMaxBlock>(pieces, n, factor, parameters, owner_error, scales, bits);
  }
}

template <Scale kScale>
HWY_INLINE void accumulate_sub_blocks(std::span<const Packed> pieces, std::size_t n, float factor,
                                      const float* owner_error, float* averaged, float* sums) {
  const auto no_prefetch = [](std::size_t) {};
  for (std::size_t first = 0; first < n; first += kSubBlock) {
    const std::size_t count = std::min<std::size_t>(kSubBlock, n - first);
    average_block<Keep::kAveraged>(pieces, 0, first, count, factor, owner_error + first, averaged + first, no_prefetch);
    const Compensated<Float32> source = {averaged + first, owner_error + first};
    sums[first / kSubBlock] = canonical(block_sum<kScale>(source, count, no_prefetch));
  }
}

ONEBIT_CODEC_KERNEL void accumulate(std::span<const Packed> pieces, std::size_t n, float factor, Scale scale,
                                    const float* owner_error, float* averaged, float* sums) noexcept {
  if (scale == Scale::kRms) {
    accumulate_sub_blocks<Scale::kRms>(pieces, n, factor, owner_error, averaged, sums);
  } else {
    accumulate_sub_blocks<Scale::kMean>(pieces, n, factor, owner_error, averaged, sums);
  }
}

}  // namespace onebit::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
