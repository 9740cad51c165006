#include "collective/nccl/device_codec.h"

#include <algorithm>
#include <utility>

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
  for (DeviceMemory* const memory : {&staging_, &sums_, &averaged_}) *memory = DeviceMemory();
}

bool DeviceCodec::reserve(std::size_t staging) {
  return grow(staging_, options_.memory, staging);
}

bool DeviceCodec::reserve(const Layout& layout) {
  if (!reserve(layout.staging_bytes())) return false;
  if (layout.block() != codec::kWhole) return true;
  const std::size_t partition = layout.plan().partition_elements();
  return grow(sums_, options_.memory, 4 * layout.sub_blocks()) &&
         grow(averaged_, options_.memory, 4 * partition);
}

std::optional<Residuals> DeviceCodec::make_residuals(const Layout& layout) const {
  const std::size_t each = error_bytes(options_.error);
  const std::size_t own = layout.scatters() ? 0 : layout.plan().partition(options_.rank).length;
  const MemorySource& source = options_.memory;
  Residuals made{DeviceMemory(source, each * layout.worker_errors()), DeviceMemory(source, each * own)};
  if (made.worker.data() == nullptr || (own != 0 && made.owner.data() == nullptr)) return std::nullopt;
  for (const DeviceMemory* const part : {&made.worker, &made.owner}) {
    if (part->bytes() == 0) continue;
    if (cudaMemsetAsync(part->data(), 0, part->bytes(), source.stream) != cudaSuccess) return std::nullopt;
  }
  if (cudaStreamSynchronize(source.stream) != cudaSuccess) return std::nullopt;
  return made;
}

std::size_t DeviceCodec::stride(Calls calls, std::size_t chunk) {
  std::size_t sum = 0;
  for (const Call& call : calls) sum += call.layout.stride(chunk);
  return sum;
}

std::size_t DeviceCodec::bytes_about(Calls calls, std::size_t chunk, std::size_t owner) const {
  std::size_t bytes = 0;
  std::size_t offset = 0;
  for (const Call& call : calls) {
    const std::size_t n = call.layout.plan().chunk(owner, chunk).length;
    if (n != 0) bytes = offset + message_bytes(n, options_.parameters.block);
    offset += call.layout.stride(chunk);
  }
  return bytes;
}

std::byte* DeviceCodec::messages(Calls calls, std::size_t chunk, Kind kind) const {
  const std::size_t place = chunk % kSets * calls.front().layout.kinds() + static_cast<std::size_t>(kind);
  return staging_.data() + place * options_.ranks * stride(calls, 0);
}

std::span<std::byte> DeviceCodec::outgoing(Calls calls, std::size_t chunk, unsigned peer) const {
  return {piece_base(calls, chunk, peer) + peer * stride(calls, chunk), bytes_about(calls, chunk, peer)};
}

std::span<std::byte> DeviceCodec::incoming(Calls calls, std::size_t chunk, unsigned peer) const {
  return {messages(calls, chunk, Kind::kIncoming) + peer * stride(calls, chunk),
          bytes_about(calls, chunk, options_.rank)};
}

std::span<std::byte> DeviceCodec::averaged(Calls calls, std::size_t chunk, unsigned owner) const {
  return {messages(calls, chunk, Kind::kAveraged) + owner * stride(calls, chunk),
          bytes_about(calls, chunk, owner)};
}

template <typename Flush>
cudaError_t DeviceCodec::prepare(const Call& call, std::size_t chunk, DeviceMemory Residuals::*part,
                                 Flush flush) {
  if (std::find(in_launch_.begin(), in_launch_.end(), call.residuals) != in_launch_.end()) {
    // The same tensor twice, or one that had to give its memory to the next.
    if (const cudaError_t error = flush(); error != cudaSuccess) return error;
    in_launch_.clear();
  }
  in_launch_.push_back(call.residuals);
  const DeviceMemory& memory = call.residuals->*part;
  if (!call.starts_anew || chunk != 0 || memory.bytes() == 0) return cudaSuccess;
  return cudaMemsetAsync(memory.data(), 0, memory.bytes(), call.stream);
}

void DeviceCodec::add_encode_pieces(Calls calls, const Call& call, std::size_t chunk, std::size_t offset) {
  const std::size_t all = stride(calls, chunk);
  for (unsigned owner = 0; owner < options_.ranks; ++owner) {
    const collective::Range range = call.layout.plan().chunk(owner, chunk);
    const Message to = message(piece_base(calls, chunk, owner) + owner * all + offset, range.length);
    const std::size_t errors = call.layout.error_begin(owner, chunk) * error_bytes(options_.error);
    encode_pieces_.push_back({static_cast<const std::byte*>(call.send) + range.begin * size_of(call.type),
                              call.residuals->worker.data() + errors, to.bits, to.scales, range.length});
  }
}

cudaError_t DeviceCodec::encode(Calls calls, std::size_t chunk) {
  const Call& first = calls.front();
  std::size_t offset = 0;
  encode_pieces_.clear();
  in_launch_.clear();
  const auto flush = [&] {
    const cudaError_t error =
        options_.parameters.block == codec::kWhole
            ? encode_whole(first)
            : kernels::encode(first.type, options_.error, encode_pieces_, options_.parameters, first.stream);
    encode_pieces_.clear();
    return error;
  };
  for (const Call& call : calls) {
    const cudaError_t error = prepare(call, chunk, &Residuals::worker, flush);
    if (error != cudaSuccess) return error;
    add_encode_pieces(calls, call, chunk, offset);
    offset += call.layout.stride(chunk);
  }
  return flush();
}

cudaError_t DeviceCodec::encode_whole(const Call& call) {
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
  const Calls alone(&call, 1);
  auto* const scales = reinterpret_cast<float*>(messages(alone, 0, Kind::kOutgoing));
  error = kernels::whole_scale(sums_.as<float>(), static_cast<std::size_t>(sums - sums_.as<float>()), count,
                               scale, {scales, options_.ranks, call.layout.stride(0)}, call.stream);
  if (error != cudaSuccess) return error;
  error = cudaMemcpyAsync(incoming(alone, 0, options_.rank).data(), scales, sizeof(float),
                          cudaMemcpyDeviceToDevice, call.stream);
  if (error != cudaSuccess) return error;
  for (kernels::EncodePiece& piece : pieces) piece.scales = scales;
  return kernels::quantize(call.type, options_.error, pieces, call.stream);
}

kernels::AveragePiece DeviceCodec::average_piece(Calls calls, const Call& call, std::size_t chunk,
                                                 std::size_t offset) const {
  const collective::Range range = call.layout.plan().chunk(options_.rank, chunk);
  const std::size_t begin = range.begin - call.layout.plan().partition(options_.rank).begin;
  const std::size_t all = stride(calls, chunk);
  const Message from = message(messages(calls, chunk, Kind::kIncoming) + offset, range.length);
  const Message to = message(averaged(calls, chunk, options_.rank).data() + offset, range.length);
  return {from.bits, from.scales, all,     call.residuals->owner.data() + begin * error_bytes(options_.error),
          to.bits,   to.scales,   nullptr, range.length};
}

cudaError_t DeviceCodec::average(Calls calls, std::size_t chunk) {
  const Call& first = calls.front();
  if (options_.parameters.block == codec::kWhole) return average_whole(first);
  std::size_t offset = 0;
  average_pieces_.clear();
  in_launch_.clear();
  const auto flush = [&] {
    const cudaError_t error = kernels::average(options_.error, average_pieces_, options_.ranks, factor(first),
                                               options_.parameters, first.stream);
    average_pieces_.clear();
    return error;
  };
  for (const Call& call : calls) {
    const cudaError_t error = prepare(call, chunk, &Residuals::owner, flush);
    if (error != cudaSuccess) return error;
    average_pieces_.push_back(average_piece(calls, call, chunk, offset));
    offset += call.layout.stride(chunk);
  }
  return flush();
}

cudaError_t DeviceCodec::average_whole(const Call& call) {
  in_launch_.clear();
  cudaError_t error = prepare(call, 0, &Residuals::owner, [] { return cudaSuccess; });
  if (error != cudaSuccess) return error;
  kernels::AveragePiece piece = average_piece({&call, 1}, call, 0, 0);
  if (piece.elements == 0) return cudaSuccess;
  const codec::Scale scale = options_.parameters.scale;
  float* const result = std::exchange(piece.new_scales, sums_.as<float>());
  piece.averaged = averaged_.as<float>();
  error = kernels::accumulate(options_.error, {&piece, 1}, options_.ranks, factor(call), scale, call.stream);
  if (error != cudaSuccess) return error;
  error = kernels::whole_scale(sums_.as<float>(), codec::sub_block_count(piece.elements), piece.elements,
                               scale, {result, 1, 0}, call.stream);
  if (error != cudaSuccess) return error;
  const kernels::EncodePiece coded = {piece.averaged, piece.error, piece.new_bits, result, piece.elements};
  return kernels::quantize(DataType::kFloat32, options_.error, {&coded, 1}, call.stream);
}

cudaError_t DeviceCodec::decode(Calls calls, std::size_t chunk) {
  std::size_t offset = 0;
  decode_pieces_.clear();
  for (const Call& call : calls) {
    for (unsigned owner = 0; owner < options_.ranks; ++owner) {
      const collective::Range range = call.layout.plan().chunk(owner, chunk);
      const Message from = message(averaged(calls, chunk, owner).data() + offset, range.length);
      decode_pieces_.push_back({from.bits, from.scales,
                                static_cast<std::byte*>(call.receive) + range.begin * size_of(call.type),
                                range.length});
    }
    offset += call.layout.stride(chunk);
  }
  return kernels::decode(calls.front().type, decode_pieces_, options_.parameters, calls.front().stream);
}

cudaError_t DeviceCodec::reduce(Calls calls, std::size_t chunk) {
  const Call& first = calls.front();
  const std::size_t all = stride(calls, chunk);
  std::size_t offset = 0;
  reduce_pieces_.clear();
  for (const Call& call : calls) {
    const collective::Range range = call.layout.plan().chunk(options_.rank, chunk);
    const std::size_t begin = range.begin - call.layout.plan().partition(options_.rank).begin;
    const Message from = message(messages(calls, chunk, Kind::kIncoming) + offset, range.length);
    reduce_pieces_.push_back({from.bits, from.scales, all,
                              static_cast<std::byte*>(call.receive) + begin * size_of(call.type),
                              range.length});
    offset += call.layout.stride(chunk);
  }
  return kernels::reduce(first.type, reduce_pieces_, options_.ranks, factor(first), options_.parameters,
                         first.stream);
}

}  // namespace onebit::nccl
