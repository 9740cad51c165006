// average and accumulate for a SIMD target.
//
// The first pass over a block adds the pieces vector by vector in a register and keeps z in a scratch block
// on the stack; the second codes z from there. The first takes most of the time, so it is the one that asks
// for what comes next.
//
// Included by kernels.cc alone, once a target. Pure functions, any thread.

HWY_BEFORE_NAMESPACE();
namespace onebit::codec::HWY_NAMESPACE {

/// Pieces summed in one sweep over a block. With more, the sums so far wait in the destination.
constexpr std::size_t kBatch = 8;
/// Blocks up to this size use a small scratch block on the stack, larger ones one of kMaxBlock.
constexpr std::size_t kUsualBlock = 4096;
/// How many elements ahead the owner's error is prefetched.
constexpr std::size_t kPrefetchDistance = 2048;

/// What the sweep over a block needs of each piece of a batch.
struct Terms {
  std::size_t count;
  float plus[kBatch];                ///< scale * factor
  const std::uint8_t* bits[kBatch];  ///< of the block's first element
};

HWY_INLINE void gather_terms(std::span<const Packed> batch, std::size_t block, std::size_t first,
                             float factor, Terms& terms) {
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
  return hn::Add(c, hn::IfThenElse(load_bits(terms.bits[r], i), plus, hn::Neg(plus)));
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

/// What the destination gets: sums so far (kPartial), or after the last batch c with NaNs as the codec writes
/// them (kAveraged) or z (kCompensated). z of the last batch is added to the block's sum.
enum class Keep { kPartial, kAveraged, kCompensated };

/// The arrays of a sweep, all from the block's first element, and the elements that may be prefetched.
struct Block {
  const float* owner_error;
  float* destination;
  std::size_t n;
  std::size_t left;  ///< elements from the block's first to the end of the partition
};

/// Adds a batch of terms over elements i..i+kLanes to the sums so far at `so_far`.
template <Scale kScale, Keep kKeep, std::size_t kCount>
HWY_INLINE void sweep_row(const Terms& terms, std::size_t i, const float* so_far, const float* owner_error,
                          float* destination, Lanes256& sum) {
  const F32 f;
  for (std::size_t l = 0; l < kLanes; l += hn::Lanes(f)) {
    auto c = add_terms<kCount>(terms, i + l, hn::LoadU(f, so_far + l));
    if constexpr (kKeep == Keep::kAveraged) {
      c = hn::IfThenElse(hn::IsNaN(c), hn::BitCast(f, hn::Set(U32(), kNanBits)), c);
    }
    if constexpr (kKeep != Keep::kCompensated) hn::StoreU(c, f, destination + l);
    if constexpr (kKeep != Keep::kPartial) {
      const auto z = hn::Add(c, hn::LoadU(f, owner_error + l));
      if constexpr (kKeep == Keep::kCompensated) hn::StoreU(z, f, destination + l);
      sum.add(l, term<kScale>(z));
    }
  }
}

/// Adds a batch of terms over a block. `begins`: it is the first.
template <Scale kScale, Keep kKeep, std::size_t kCount>
HWY_INLINE void sweep(const Terms& terms, bool begins, const Block& block, Lanes256& sum) {
  HWY_ALIGN float zeros[kLanes];  // -0, as -0 + x is x for every x
  std::fill_n(zeros, kLanes, -0.0f);
  std::size_t i = 0;
  for (; i + kLanes <= block.n; i += kLanes) {
    if (kKeep == Keep::kCompensated && i + kPrefetchDistance + kLanes <= block.left) {
      prefetch(block.owner_error + i + kPrefetchDistance, kLanes);
    }
    const float* const so_far = begins ? zeros : block.destination + i;
    sweep_row<kScale, kKeep, kCount>(terms, i, so_far, block.owner_error + i, block.destination + i, sum);
  }
  if (i == block.n) return;
  // The end: a row of its own, of which the elements after the end are thrown away.
  const std::size_t count = block.n - i;
  float error[kLanes] = {};
  float destination[kLanes] = {};
  std::uint8_t bits[kBatch][kLanes / 8] = {};
  Terms end = terms;
  for (std::size_t r = 0; r < terms.count; ++r) {
    std::memcpy(bits[r], terms.bits[r] + i / 8, bit_bytes(count));
    end.bits[r] = bits[r];
  }
  std::memcpy(error, block.owner_error + i, count * sizeof(float));
  if (!begins) std::memcpy(destination, block.destination + i, count * sizeof(float));
  Lanes256 unused;
  unused.clear();
  sweep_row<kScale, kKeep, kCount>(end, 0, begins ? zeros : destination, error, destination, unused);
  std::memcpy(block.destination + i, destination, count * sizeof(float));
  if constexpr (kKeep == Keep::kAveraged) {
    sum_block<kScale>(Compensated<Float32>{destination, error}, count, sum);
  } else if constexpr (kKeep == Keep::kCompensated) {
    sum_block<kScale>(Computed{destination}, count, sum);
  }
}

/// The first pass over a block, which begins at element `first` of the pieces and has scale `index` of each.
template <Scale kScale, Keep kKeep>
HWY_INLINE void average_block(std::span<const Packed> pieces, std::size_t index, std::size_t first,
                              float factor, const Block& block, Lanes256& sum) {
  Terms terms;
  std::size_t done = 0;
  for (; done + kBatch < pieces.size(); done += kBatch) {
    gather_terms(pieces.subspan(done, kBatch), index, first, factor, terms);
    sweep<kScale, Keep::kPartial, kBatch>(terms, done == 0, block, sum);
  }
  gather_terms(pieces.subspan(done), index, first, factor, terms);
  switch (terms.count) {
    case 2:
      return sweep<kScale, kKeep, 2>(terms, done == 0, block, sum);
    case 4:
      return sweep<kScale, kKeep, 4>(terms, done == 0, block, sum);
    case 8:
      return sweep<kScale, kKeep, 8>(terms, done == 0, block, sum);
    default:
      return sweep<kScale, kKeep, 0>(terms, done == 0, block, sum);
  }
}

template <Scale kScale>
HWY_INLINE void average_blocks(std::span<const Packed> pieces, std::size_t n, float factor, std::size_t block,
                               float* owner_error, std::byte* scales, std::uint8_t* bits, float* scratch) {
  for (std::size_t first = 0; first < n; first += block) {
    const std::size_t count = std::min(block, n - first);
    Lanes256 sum;
    sum.clear();
    average_block<kScale, Keep::kCompensated>(pieces, first / block, first, factor,
                                              {owner_error + first, scratch, count, n - first}, sum);
    const float scale = block_scale(kScale, sum.fold(), count);
    store_scale(scales, first / block, scale);
    quantize_block(Computed{scratch}, count, scale, owner_error + first, bits + first / 8,
                   [](std::size_t) {});
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
    average_block<kScale, Keep::kAveraged>(pieces, 0, first, factor,
                                           {owner_error + first, averaged + first, count, count}, sum);
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
