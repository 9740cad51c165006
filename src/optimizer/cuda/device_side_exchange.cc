// DeviceSide: what it exchanges with other ranks, and the residuals.

#include <algorithm>

#include "collective/nccl/device_guard.h"
#include "optimizer/cuda/device_side.h"

namespace onebit::optimizer::cuda {

using nccl::DeviceGuard;

namespace {

/// Bytes of a rank for which there is room from the start, so that a step whose ranks agree takes no memory.
constexpr std::size_t kUsualMessage = 64;

}  // namespace

void DeviceSide::sum(void* data, std::size_t count, nccl::Type type, std::size_t element_bytes,
                     const char* what) {
  note(settings_.nccl.all_reduce(data, data, count, type, nccl::kSum, settings_.comm, settings_.stream),
       what);
  sent_exactly_ += collective::ring_bytes(count * element_bytes, settings_.ranks);
}

std::uint64_t DeviceSide::sent_bytes() const {
  return sent_exactly_ + (communicator_ != nullptr ? communicator_->statistics().sent_bytes : 0);
}

Status DeviceSide::mean(float* data, std::size_t count) {
  ONEBIT_RETURN_IF_ERROR(status_);
  const DeviceGuard guard(settings_.device);
  // NCCL's own average scales before it sums, which rounds otherwise than the host's.
  sum(data, count, nccl::kFloat32, sizeof *data, "averaging gradients");
  if (status_.ok()) {
    note(scale(data, count, 1.0F / static_cast<float>(settings_.ranks), settings_.stream),
         "averaging gradients");
  }
  return status_;
}

Status DeviceSide::compressed_mean(float* data, std::size_t unit) {
  ONEBIT_RETURN_IF_ERROR(status_);
  const Unit& own = units_[unit];
  are_worthless_ = true;
  nccl::Request request{.communicator = communicator_.get(),
                        .send = data,
                        .receive = data,
                        .shape = own.count,
                        .type = DataType::kFloat32,
                        .op = ReduceOp::kAvg,
                        .stream = settings_.stream,
                        .residuals = &own.residuals};
  note(nccl::run({&request, 1}), "exchanging in 1 bit");
  return status_;
}

Status DeviceSide::complete() {
  const DeviceGuard guard(settings_.device);
  ONEBIT_RETURN_IF_ERROR(wait("exchanging"));
  are_worthless_ = false;
  return Status();
}

Status DeviceSide::all_gather(const void* send, void* receive, std::size_t bytes) {
  const DeviceGuard guard(settings_.device);
  ONEBIT_RETURN_IF_ERROR(wait("what ranks tell each other"));
  if (is_alone()) {
    std::copy_n(static_cast<const std::byte*>(send), bytes, static_cast<std::byte*>(receive));
    return Status();
  }
  const std::size_t all = bytes * settings_.ranks;
  if (gathered_.bytes() < all) {
    gathered_ = nccl::DeviceMemory(source(), std::max(all, kUsualMessage * settings_.ranks));
  }
  if (gathered_.bytes() < all) note(cudaErrorMemoryAllocation, "what ranks tell each other");
  ONEBIT_RETURN_IF_ERROR(wait("what ranks tell each other"));
  std::byte* const own = gathered_.data() + settings_.rank * bytes;
  if (const Status status = copy_now(own, send, bytes, cudaMemcpyHostToDevice); !status.ok()) {
    return give_up(status);
  }
  note(
      settings_.nccl.all_gather(own, gathered_.data(), bytes, nccl::kUint8, settings_.comm, settings_.stream),
      "what ranks tell each other");
  sent_exactly_ += (settings_.ranks - 1) * bytes;
  ONEBIT_RETURN_IF_ERROR(wait("what ranks tell each other"));
  return copy_now(receive, gathered_.data(), all, cudaMemcpyDeviceToHost);
}

// ---- residuals ----

Status DeviceSide::add_unit(std::size_t count, bool whole) {
  if (communicator_ == nullptr) {
    nccl::CommunicatorOptions options;
    options.comm = settings_.comm;
    options.nccl = settings_.nccl;
    options.device = settings_.device;
    options.chunk = settings_.chunk;
    options.codec.parameters = {settings_.block,
                                settings_.scale_is_mean ? codec::Scale::kMean : codec::Scale::kRms};
    if (whole) options.codec.parameters = {codec::kWhole, codec::Scale::kRms};
    options.codec.ranks = settings_.ranks;
    options.codec.rank = settings_.rank;
    ONEBIT_ASSIGN_OR_RETURN(communicator_, nccl::NcclCommunicator::create(options));
  }
  auto residuals = communicator_->reserve(count);
  if (!residuals) {
    return Status::error(Code::kSystemError,
                         "CUDA device {} has no memory left for the residuals of {} elements",
                         settings_.device, count);
  }
  units_.push_back({count, std::move(*residuals)});
  return Status();
}

std::size_t DeviceSide::owned(const Unit& unit) const {
  return collective::PartitionPlan(unit.count, settings_.ranks, 1).partition(settings_.rank).length;
}

template <typename Each>
Status DeviceSide::for_partitions(const Unit& unit, Each each) const {
  const collective::PartitionPlan plan(unit.count, settings_.ranks, 1);
  for (std::size_t owner = 0; owner < settings_.ranks; ++owner) {
    const collective::Range range = plan.partition(owner);
    float* const errors = communicator_->worker_errors(unit.residuals, unit.count, owner);
    ONEBIT_RETURN_IF_ERROR(each(errors, range.begin, range.length));
  }
  return Status();
}

Status DeviceSide::read_residual(std::size_t unit, float* worker, float* owner) {
  const Unit& own = units_[unit];
  if (are_cleared_) {
    std::fill_n(worker, own.count, 0.0F);
    std::fill_n(owner, owned(own), 0.0F);
    return Status();
  }
  ONEBIT_RETURN_IF_ERROR(for_partitions(own, [&](const float* errors, std::size_t begin, std::size_t count) {
    return read(worker + begin, errors, count * sizeof(float));
  }));
  return read(owner, own.residuals.owner.data(), owned(own) * sizeof(float));
}

Status DeviceSide::write_residual(std::size_t unit, const float* worker, const float* owner) {
  const Unit& own = units_[unit];
  ONEBIT_RETURN_IF_ERROR(for_partitions(own, [&](float* errors, std::size_t begin, std::size_t count) {
    return write(errors, worker + begin, count * sizeof(float));
  }));
  return write(own.residuals.owner.data(), owner, owned(own) * sizeof(float));
}

void DeviceSide::clear_residuals() {
  if (!status_.ok()) {
    are_cleared_ = true;
    are_worthless_ = false;
    return;
  }
  for (const Unit& unit : units_) {
    zero(unit.residuals.worker.data(), unit.residuals.worker.bytes());
    zero(unit.residuals.owner.data(), unit.residuals.owner.bytes());
  }
  are_worthless_ = false;
}

std::size_t DeviceSide::residual_bytes() const {
  std::size_t bytes = 0;
  for (const Unit& unit : units_) bytes += unit.residuals.bytes();
  return bytes;
}

}  // namespace onebit::optimizer::cuda
