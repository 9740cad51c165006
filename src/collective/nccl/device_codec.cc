#include "collective/nccl/device_codec.h"

namespace onebit::nccl {
namespace {

namespace kernels = codec::cuda;

std::size_t error_bytes(kernels::ErrorType type) {
  return type == kernels::ErrorType::kFloat32 ? 4 : 2;
}

/// What the terms of an average are multiplied with.
float factor(const Call& call) {
  return call.op == ReduceOp::kAvg ? 1.0f / static_cast<float>(call.layout.ranks()) : 1.0f;
}

/// `memory` with at least `bytes`, of which new ones are 0: what lies between messages goes to other ranks
/// too. False when there are none.
bool grow(DeviceMemory& memory, const MemorySource& source, std::size_t bytes) {
  if (memory.bytes() >= bytes) return true;
  DeviceMemory larger(source, bytes);
  if (larger.data() == nullptr) return false;
  if (cudaMemsetAsync(larger.data(), 0, bytes, source.stream) != cudaSuccess) return false;
  if (cudaStreamSynchronize(source.stream) != cudaSuccess) return false;
  memory = std::move(larger);
  return true;
}

}  // namespace

cudaError_t Residuals::reset(cudaStream_t stream) const {
  const cudaError_t error = cudaMemsetAsync(worker.data(), 0, worker.bytes(), stream);
  if (error != cudaSuccess || owner.bytes() == 0) return error;
  return cudaMemsetAsync(owner.data(), 0, owner.bytes(), stream);
}

/// The parts of a message.
struct DeviceCodec::Message {
  float* scales;
  std::uint32_t* bits;
};

DeviceCodec::Message DeviceCodec::message(std::byte* at, std::size_t n) const {
  return {reinterpret_cast<float*>(at),
          reinterpret_cast<std::uint32_t*>(at + bits_offset(n, options_.parameters.block))};
}

void DeviceCodec::release() {
  for (DeviceMemory* const memory : {&outgoing_, &incoming_, &sums_, &averaged_}) *memory = DeviceMemory();
}

bool DeviceCodec::reserve(const Layout& layout) {
  const std::size_t staging = layout.staging_bytes();
  if (!grow(outgoing_, options_.memory, staging)) return false;
  if (!grow(incoming_, options_.memory, staging)) return false;
  if (layout.block() != codec::kWhole) return true;
  const std::size_t partition = layout.plan().partition_elements();
  return grow(sums_, options_.memory, 4 * layout.sub_blocks()) &&
         grow(averaged_, options_.memory, 4 * partition);
}

std::optional<Residuals> DeviceCodec::make_residuals(const Layout& layout) const {
  const auto& plan = layout.plan();
  const collective::Range last = plan.partition(options_.ranks - 1);
  const std::size_t count = last.begin + last.length;
  const std::size_t own = plan.partition(options_.rank).length;
  const std::size_t each = error_bytes(options_.error);
  Residuals made{DeviceMemory(options_.memory, each * count), DeviceMemory(options_.memory, each * own)};
  if (made.worker.data() == nullptr || (own != 0 && made.owner.data() == nullptr)) return std::nullopt;
  if (made.reset(options_.memory.stream) != cudaSuccess) return std::nullopt;
  if (cudaStreamSynchronize(options_.memory.stream) != cudaSuccess) return std::nullopt;
  return made;
}

std::span<std::byte> DeviceCodec::outgoing(const Call& call, std::size_t chunk, unsigned peer) const {
  const std::size_t n = elements(call, chunk, peer);
  // This rank's own piece comes in without a journey.
  std::byte* const base = peer == options_.rank ? incoming_.data() : outgoing_.data();
  return {base + peer * call.layout.stride(chunk), n == 0 ? 0 : message_bytes(n, options_.parameters.block)};
}

std::span<std::byte> DeviceCodec::incoming(const Call& call, std::size_t chunk, unsigned peer) const {
  const std::size_t n = elements(call, chunk, options_.rank);
  return {incoming_.data() + peer * call.layout.stride(chunk),
          n == 0 ? 0 : message_bytes(n, options_.parameters.block)};
}

std::span<const kernels::EncodePiece> DeviceCodec::encode_pieces(const Call& call, std::size_t chunk) {
  encode_pieces_.clear();
  for (unsigned owner = 0; owner < options_.ranks; ++owner) {
    const collective::Range range = call.layout.plan().chunk(owner, chunk);
    const Message to = message(outgoing(call, chunk, owner).data(), range.length);
    encode_pieces_.push_back({static_cast<const std::byte*>(call.send) + range.begin * size_of(call.type),
                              call.residuals->worker.data() + range.begin * error_bytes(options_.error),
                              to.bits, to.scales, range.length});
  }
  return encode_pieces_;
}

cudaError_t DeviceCodec::encode(const Call& call, std::size_t chunk) {
  if (options_.parameters.block == codec::kWhole) return encode_whole(call);
  return kernels::encode(call.type, options_.error, encode_pieces(call, chunk), options_.parameters,
                         call.stream);
}

cudaError_t DeviceCodec::encode_whole(const Call& call) {
  encode_pieces(call, 0);
  std::vector<kernels::EncodePiece>& pieces = encode_pieces_;
  const codec::Scale scale = options_.parameters.scale;
  std::size_t count = 0;
  float* sums = sums_.as<float>();
  for (kernels::EncodePiece& piece : pieces) {
    piece.scales = sums;
    sums += codec::sub_block_count(piece.elements);
    count += piece.elements;
  }
  cudaError_t error = kernels::sums(call.type, options_.error, pieces, scale, call.stream);
  if (error != cudaSuccess) return error;
  // Every message has the scale; this rank's own lies elsewhere.
  auto* const scales = reinterpret_cast<float*>(outgoing_.data());
  error = kernels::whole_scale(sums_.as<float>(), static_cast<std::size_t>(sums - sums_.as<float>()), count,
                               scale, {scales, options_.ranks, call.layout.stride(0)}, call.stream);
  if (error != cudaSuccess) return error;
  error = cudaMemcpyAsync(incoming_.data() + options_.rank * call.layout.stride(0), scales, sizeof(float),
                          cudaMemcpyDeviceToDevice, call.stream);
  if (error != cudaSuccess) return error;
  for (kernels::EncodePiece& piece : pieces) piece.scales = scales;
  return kernels::quantize(call.type, options_.error, pieces, call.stream);
}

cudaError_t DeviceCodec::average(const Call& call, std::size_t chunk) {
  const std::size_t n = elements(call, chunk, options_.rank);
  if (n == 0) return cudaSuccess;
  const std::size_t offset = call.layout.plan().chunk(options_.rank, chunk).begin -
                             call.layout.plan().partition(options_.rank).begin;
  const Message from = message(incoming_.data(), n);
  const Message to = message(gathered() + options_.rank * call.layout.stride(chunk), n);
  const kernels::AveragePiece piece = {from.bits,
                                       from.scales,
                                       call.layout.stride(chunk),
                                       call.residuals->owner.data() + offset * error_bytes(options_.error),
                                       to.bits,
                                       to.scales,
                                       nullptr,
                                       n};
  if (options_.parameters.block == codec::kWhole) return average_whole(call, piece);
  return kernels::average(options_.error, {&piece, 1}, options_.ranks, factor(call), options_.parameters,
                          call.stream);
}

cudaError_t DeviceCodec::average_whole(const Call& call, kernels::AveragePiece piece) {
  const codec::Scale scale = options_.parameters.scale;
  float* const result = std::exchange(piece.new_scales, sums_.as<float>());
  piece.averaged = averaged_.as<float>();
  cudaError_t error =
      kernels::accumulate(options_.error, {&piece, 1}, options_.ranks, factor(call), scale, call.stream);
  if (error != cudaSuccess) return error;
  error = kernels::whole_scale(sums_.as<float>(), codec::sub_block_count(piece.elements), piece.elements,
                               scale, {result, 1, 0}, call.stream);
  if (error != cudaSuccess) return error;
  const kernels::EncodePiece coded = {piece.averaged, piece.error, piece.new_bits, result, piece.elements};
  return kernels::quantize(DataType::kFloat32, options_.error, {&coded, 1}, call.stream);
}

cudaError_t DeviceCodec::decode(const Call& call, std::size_t chunk) {
  decode_pieces_.clear();
  for (unsigned owner = 0; owner < options_.ranks; ++owner) {
    const collective::Range range = call.layout.plan().chunk(owner, chunk);
    const Message from = message(gathered() + owner * call.layout.stride(chunk), range.length);
    decode_pieces_.push_back({from.bits, from.scales,
                              static_cast<std::byte*>(call.receive) + range.begin * size_of(call.type),
                              range.length});
  }
  return kernels::decode(call.type, decode_pieces_, options_.parameters, call.stream);
}

}  // namespace onebit::nccl
