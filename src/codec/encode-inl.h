// encode, sums and quantize for a SIMD target.
//
// A block is read from memory by its first pass, the sum; the second, which codes it, finds it in the caches.
// While that goes on the memory would be idle, so it is asked for the part of the next block that it can
// bring in that time.
//
// Included by kernels.cc alone, once a target. Pure functions, any thread.

HWY_BEFORE_NAMESPACE();
namespace onebit::codec::HWY_NAMESPACE {

/// Calls `function` with the kernels' type for `type`.
template <class Function>
HWY_INLINE void with_type(DataType type, Function function) {
  switch (type) {
    case DataType::kFloat32:
      return function(Float32());
    case DataType::kFloat16:
      return function(Float16());
    case DataType::kBFloat16:
      return function(BFloat16());
    case DataType::kInt32:
    case DataType::kInt64:
    case DataType::kFloat64:
      break;  // not compressible: the caller's error
  }
}

/// Of each row that is coded, this part of the next block's is prefetched: the two passes take about 4 to 1
/// of the time.
constexpr std::size_t kPrefetchedPart = 4;

template <Scale kScale, class Type>
HWY_INLINE void encode_blocks(const typename Type::Element* x, std::size_t n, std::size_t block, float* error,
                              std::byte* scales, std::uint8_t* bits) {
  for (std::size_t first = 0; first < n; first += block) {
    const std::size_t count = std::min(block, n - first);
    const Compensated<Type> source = {x + first, error + first};
    Lanes256 sum;
    sum.clear();
    sum_block<kScale>(source, count, sum);
    const float scale = block_scale(kScale, sum.fold(), count);
    store_scale(scales, first / block, scale);
    const std::size_t next = first + block;
    const bool prefetches = next < n && n - next >= block;
    quantize_block(source, count, scale, error + first, bits + first / 8, [&](std::size_t i) HWY_ATTR {
      if (!prefetches) return;
      prefetch(x + next + i / kPrefetchedPart, kLanes / kPrefetchedPart);
      prefetch(error + next + i / kPrefetchedPart, kLanes / kPrefetchedPart);
    });
  }
}

ONEBIT_CODEC_KERNEL void encode(DataType type, const void* x, std::size_t n, Parameters parameters,
                                float* error, std::byte* scales, std::uint8_t* bits) noexcept {
  with_type(type, [=](auto tag) {
    using Type = decltype(tag);
    const auto* elements = static_cast<const typename Type::Element*>(x);
    if (parameters.scale == Scale::kRms) {
      encode_blocks<Scale::kRms, Type>(elements, n, parameters.block, error, scales, bits);
    } else {
      encode_blocks<Scale::kMean, Type>(elements, n, parameters.block, error, scales, bits);
    }
  });
}

template <Scale kScale, class Type>
HWY_INLINE void sub_block_sums(const typename Type::Element* x, std::size_t n, const float* error,
                               float* sums) {
  for (std::size_t first = 0; first < n; first += kSubBlock) {
    const Compensated<Type> source = {x + first, error + first};
    const std::size_t count = std::min<std::size_t>(kSubBlock, n - first);
    Lanes256 sum;
    sum.clear();
    sum_block<kScale>(source, count, sum);
    sums[first / kSubBlock] = canonical(sum.fold());
  }
}

ONEBIT_CODEC_KERNEL void sums(DataType type, const void* x, std::size_t n, Scale scale, const float* error,
                              float* sums) noexcept {
  with_type(type, [=](auto tag) {
    using Type = decltype(tag);
    const auto* elements = static_cast<const typename Type::Element*>(x);
    if (scale == Scale::kRms) {
      sub_block_sums<Scale::kRms, Type>(elements, n, error, sums);
    } else {
      sub_block_sums<Scale::kMean, Type>(elements, n, error, sums);
    }
  });
}

ONEBIT_CODEC_KERNEL void quantize(DataType type, const void* x, std::size_t n, float scale, float* error,
                                  std::uint8_t* bits) noexcept {
  with_type(type, [=](auto tag) {
    using Type = decltype(tag);
    const Compensated<Type> source = {static_cast<const typename Type::Element*>(x), error};
    quantize_block(source, n, scale, error, bits, [](std::size_t) {});
  });
}

}  // namespace onebit::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
