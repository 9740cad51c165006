// average and accumulate for a SIMD target.
//
// The pieces are summed a row (256 elements) at a time. z of one block is kept in a scratch block on the stack between its
// sum and its bits; average codes each row of a block right before it puts the same row of the next one in its place, so
// that memory, arithmetic and stores go on side by side.
//
// Included by kernels.cc alone, once a target. Pure functions, any thread.

HWY_BEFORE_NAMESPACE();
namespace onebit::codec::HWY_NAMESPACE {

/// Pieces summed in one sweep over a row. With more, the sums so far wait in the destination.
constexpr std::size_t kBatch = 8;
/// Blocks up to this size use a small scratch block on the stack, larger ones one of kMaxBlock.
constexpr std::size_t kUsualBlock = 4096;

/// What the sweep over a block needs of each piece of a batch.
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

/// Adds +-terms.plus[r] to the vector at element i of the block.
HWY_INLINE VF32 add_term(const Terms& terms, std::size_t r, std::size_t i, VF32 c) {
  const F32 f;
  const auto plus = hn::Set(f, terms.plus[r]);
  return hn::Add(c, hn::IfThenElse(load_bits(terms.bits[r] + i / 8, 0), plus, hn::Neg(plus)));
}

/// Adds all terms in their order. kCount is their number, or 0 when it is known at run time only.
template <std::size_t kCount, std::size_t kBegin = 0>
HWY_INLINE VF32 add_terms(const Terms& terms, std::size_t i, VF32 c) {
  if constexpr (kCount == 0) {
    for (std::size_t r = 0; r < terms.count; ++r) c = add_term(terms, r, i, c);
  } else if constexpr (kBegin < kCount) {
    c = add_terms<kCount, kBegin + 1>(terms, i, add_term(terms, kBegin, i, c));
  }
  return c;
}

/// What the destination gets: sums so far (kPartial), or after the last batch c with NaNs as the codec writes them
/// (kAveraged) or z (kCompensated). z of the last batch is added to the block's sum.
enum class Keep { kPartial, kAveraged, kCompensated };

/// Adds a batch of terms to the sums so far (none when `begins`) over one row.
template <Scale kScale, Keep kKeep, std::size_t kCount>
HWY_INLINE void sweep_row(const Terms& terms, bool begins, std::size_t i, const float* owner_error, float* destination, Lanes256& sum) {
  const F32 f;
  for (std::size_t l = 0; l < kLanes; l += hn::Lanes(f)) {
    // -0 + x is x, for every x.
    auto c = begins ? hn::Set(f, -0.0f) : hn::LoadU(f, destination + i + l);
    c = add_terms<kCount>(terms, i + l, c);
    if (kKeep == Keep::kAveraged) {
      c = hn::IfThenElse(hn::IsNaN(c), hn::BitCast(f, hn::Set(U32(), kNanBits)), c);
    }
    if (kKeep != Keep::kCompensated) hn::StoreU(c, f, destination + i + l);
    if (kKeep == Keep::kPartial) continue;
    const auto z = hn::Add(c, hn::LoadU(f, owner_error + i + l));
    if (kKeep == Keep::kCompensated) hn::StoreU(z, f, destination + i + l);
    sum.add(l, term<kScale>(z));
  }
}

template <Scale kScale, Keep kKeep, std::size_t kCount>
HWY_NOINLINE void sweep(const Terms& in_terms, bool begins, std::size_t n, const float* owner_error, float* destination, Lanes256& in_sum) {
  const Terms terms = in_terms;
  Lanes256 sum;
  std::memcpy(&sum,&in_sum,sizeof sum);
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sweep_row<kScale, kKeep, kCount>(terms, begins, i, owner_error, destination, sum);
  std::memcpy(&in_sum,&sum,sizeof sum);
}

template <Scale kScale, Keep kKeep>
HWY_INLINE void average_block(std::span<const Packed> pieces, std::size_t block, std::size_t first, std::size_t n,
                              float factor, const float* owner_error, float* destination, Lanes256& sum) {
  Terms terms;
  std::size_t done = 0;
  for (; done + kBatch < pieces.size(); done += kBatch) {
    gather_terms(pieces.subspan(done, kBatch), block, first, factor, terms);
    sweep<kScale, Keep::kPartial, kBatch>(terms, done == 0, n, owner_error, destination, sum);
  }
  const bool begins = done == 0;
  gather_terms(pieces.subspan(done), block, first, factor, terms);
  switch (terms.count) {
    case 2: return sweep<kScale, kKeep, 2>(terms, begins, n, owner_error, destination, sum);
    case 4: return sweep<kScale, kKeep, 4>(terms, begins, n, owner_error, destination, sum);
    case 8: return sweep<kScale, kKeep, 8>(terms, begins, n, owner_error, destination, sum);
    default: return sweep<kScale, kKeep, 0>(terms, begins, n, owner_error, destination, sum);
  }
}

template <Scale kScale>
HWY_INLINE void average_blocks(std::span<const Packed> pieces, std::size_t n, float factor, std::size_t block,
                               float* owner_error, std::byte* scales, std::uint8_t* bits, float* scratch) {
  const F32 f;
  const Computed source = {scratch};
  for (std::size_t first = 0; first < n; first += block) {
    const std::size_t count = std::min(block, n - first);
    Lanes256 sum;
    sum.clear();
    average_block<kScale, Keep::kCompensated>(pieces, first / block, first, count, factor, owner_error + first, scratch, sum);
    const float scale = block_scale(kScale, sum.fold(), count);
    store_scale(scales, first / block, scale);
    if (std::isnan(scale) || count < block || n - first - count < block) {
      quantize_block(source, count, scale, owner_error + first, bits + first / 8);
      continue;
    }
    const auto plus = hn::Set(f, scale);
    const auto minus = hn::Neg(plus);
    for (std::size_t i = 0; i < block; i += kLanes) {
      const std::size_t at = first + block + i / 4;
      for (std::size_t l = 0; l < kLanes/4; l += 16) __builtin_prefetch(owner_error + at + l, 0, 3);
      for (const Packed& piece : pieces) hwy::Prefetch(piece.bits + (first + block + i)/ 8);
      quantize_row(source, i, plus, minus, owner_error + first, bits + first / 8);
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
  for (std::size_t first = 0; first < n; first += kSubBlock) {
    const std::size_t count = std::min<std::size_t>(kSubBlock, n - first);
    Lanes256 sum;
    sum.clear();
    average_block<kScale, Keep::kAveraged>(pieces, 0, first, count, factor, owner_error + first, averaged + first, sum);
    sums[first / kSubBlock] = canonical(sum.fold());
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
