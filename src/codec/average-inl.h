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

/// What the sweep over a row needs of each piece of a batch.
struct Terms {
  float plus[kBatch];                      ///< scale * factor
  std::uint8_t bits[kBatch][kLanes / 8];   ///< of the row, side by side: the sums read them by one address
};

/// The terms of elements i..i+n (a row or less) of block `block`. Bits after the end are 0.
HWY_INLINE void gather_terms(std::span<const Packed> batch, std::size_t block, std::size_t i, std::size_t n,
                             float factor, Terms& terms) {
  for (std::size_t r = 0; r < batch.size(); ++r) {
    terms.plus[r] = load_scale(batch[r].scales, block) * factor;
    if (n == kLanes) {
      std::memcpy(terms.bits[r], batch[r].bits + i / 8, kLanes / 8);
    } else {
      std::memset(terms.bits[r], 0, kLanes / 8);
      std::memcpy(terms.bits[r], batch[r].bits + i / 8, bit_bytes(n));
    }
  }
}

/// Adds +-terms.plus[r] to the vector at element l of the row.
HWY_INLINE VF32 add_term(const Terms& terms, std::size_t r, std::size_t l, VF32 c) {
  const auto plus = hn::Set(F32(), terms.plus[r]);
  return hn::Add(c, hn::IfThenElse(load_bits(terms.bits[r], l / hn::Lanes(F32())), plus, hn::Neg(plus)));
}

/// Adds all terms in their order. kCount is their number, or 0 when it is known at run time only.
template <std::size_t kCount, std::size_t kBegin = 0>
HWY_INLINE VF32 add_terms(const Terms& terms, std::size_t count, std::size_t l, VF32 c) {
  if constexpr (kCount == 0) {
    for (std::size_t r = 0; r < count; ++r) c = add_term(terms, r, l, c);
  } else if constexpr (kBegin < kCount) {
    c = add_terms<kCount, kBegin + 1>(terms, count, l, add_term(terms, kBegin, l, c));
  }
  return c;
}

/// What the destination gets: sums so far (kPartial), or after the last batch c with NaNs as the codec writes them
/// (kAveraged) or z (kCompensated). z of the last batch is added to the block's sum.
enum class Keep { kPartial, kAveraged, kCompensated };

/// Adds a batch of terms to the sums so far (none when `begins`) over one row. All pointers are to the row.
template <Scale kScale, Keep kKeep, std::size_t kCount>
HWY_INLINE void sweep(const Terms& terms, std::size_t count, bool begins, const float* owner_error,
                      float* destination, Lanes256& sum) {
  const F32 f;
  for (std::size_t l = 0; l < kLanes; l += hn::Lanes(f)) {
    // -0 + x is x, for every x.
    auto c = begins ? hn::Set(f, -0.0f) : hn::LoadU(f, destination + l);
    c = add_terms<kCount>(terms, count, l, c);
    if (kKeep == Keep::kAveraged) {
      c = hn::IfThenElse(hn::IsNaN(c), hn::BitCast(f, hn::Set(U32(), kNanBits)), c);
    }
    if (kKeep != Keep::kCompensated) hn::StoreU(c, f, destination + l);
    if (kKeep == Keep::kPartial) continue;
    const auto z = hn::Add(c, hn::LoadU(f, owner_error + l));
    if (kKeep == Keep::kCompensated) hn::StoreU(z, f, destination + l);
    sum.add(l, term<kScale>(z));
  }
}

/// A row of the pieces' sums: where it is, and where the results go.
struct Row {
  std::size_t block;           ///< of the scales
  std::size_t first;           ///< its first element in the pieces
  const float* owner_error;    ///< of its first element
  float* destination;          ///< of its first element

  HWY_INLINE Row next() const { return {block, first + kLanes, owner_error + kLanes, destination + kLanes}; }
};

/// Sums the pieces over a row, of which the first n elements count: those after them become arbitrary numbers.
template <Scale kScale, Keep kKeep>
HWY_INLINE void average_row(std::span<const Packed> pieces, float factor, const Row& row, std::size_t n,
                            Lanes256& sum) {
  Terms terms;
  std::size_t done = 0;
  for (; done + kBatch < pieces.size(); done += kBatch) {
    gather_terms(pieces.subspan(done, kBatch), row.block, row.first, n, factor, terms);
    sweep<kScale, Keep::kPartial, kBatch>(terms, kBatch, done == 0, row.owner_error, row.destination, sum);
  }
  const std::size_t count = pieces.size() - done;
  gather_terms(pieces.subspan(done), row.block, row.first, n, factor, terms);
  switch (count) {
    case 2: return sweep<kScale, kKeep, 2>(terms, count, done == 0, row.owner_error, row.destination, sum);
    case 4: return sweep<kScale, kKeep, 4>(terms, count, done == 0, row.owner_error, row.destination, sum);
    case 8: return sweep<kScale, kKeep, 8>(terms, count, done == 0, row.owner_error, row.destination, sum);
    default: return sweep<kScale, kKeep, 0>(terms, count, done == 0, row.owner_error, row.destination, sum);
  }
}

/// Sums the pieces over elements 0..n of a block, which `row` begins.
template <Scale kScale, Keep kKeep>
HWY_INLINE void average_block(std::span<const Packed> pieces, float factor, Row row, std::size_t n, Lanes256& sum) {
  for (; n >= kLanes; n -= kLanes, row = row.next()) {
    average_row<kScale, kKeep>(pieces, factor, row, kLanes, sum);
  }
  if (n == 0) return;
  float error[kLanes] = {};
  float destination[kLanes];
  std::memcpy(error, row.owner_error, n * sizeof(float));
  Lanes256 unused;
  unused.clear();
  average_row<kScale, kKeep>(pieces, factor, {row.block, row.first, error, destination}, n, unused);
  std::memcpy(row.destination, destination, n * sizeof(float));
  if (kKeep == Keep::kAveraged) {
    sum_block<kScale>(Compensated<Float32>{row.destination, row.owner_error}, n, sum);
  } else {
    sum_block<kScale>(Computed{row.destination}, n, sum);
  }
}

template <Scale kScale>
HWY_INLINE void average_blocks(std::span<const Packed> pieces, std::size_t n, float factor, std::size_t block,
                               float* owner_error, std::byte* scales, std::uint8_t* bits, float* scratch) {
  const F32 f;
  const Computed source = {scratch};
  Lanes256 sum;
  std::size_t count = std::min(block, n);
  sum.clear();
  average_block<kScale, Keep::kCompensated>(pieces, factor, {0, 0, owner_error, scratch}, count, sum);
  for (std::size_t first = 0; first < n;) {
    const float scale = block_scale(kScale, sum.fold(), count);
    store_scale(scales, first / block, scale);
    const std::size_t next = first + count;
    const std::size_t next_count = std::min(block, n - next);
    Row row = {next / block, next, owner_error + next, scratch};
    sum.clear();
    if (next_count == block && !std::isnan(scale)) {
      const auto plus = hn::Set(f, scale);
      const auto minus = hn::Neg(plus);
      for (std::size_t i = 0; i < block; i += kLanes, row = row.next()) {
        quantize_row(source, i, plus, minus, owner_error + first, bits + first / 8);
        average_row<kScale, Keep::kCompensated>(pieces, factor, row, kLanes, sum);
      }
    } else {
      quantize_block(source, count, scale, owner_error + first, bits + first / 8);
      average_block<kScale, Keep::kCompensated>(pieces, factor, row, next_count, sum);
    }
    first = next;
    count = next_count;
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
    average_block<kScale, Keep::kAveraged>(pieces, factor, {0, first, owner_error + first, averaged + first}, count,
                                           sum);
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
