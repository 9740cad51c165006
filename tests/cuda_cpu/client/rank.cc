#include "cuda_cpu/client/rank.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <fmt/format.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "cuda_cpu/client/call.h"

namespace onebit::nccl_client {
namespace {

float load(const void* data, std::size_t i, const std::string& type) {
  if (type == "float") return static_cast<const float*>(data)[i];
  if (type == "half") return __half2float(static_cast<const __half*>(data)[i]);
  return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
}
void store(void* data, std::size_t i, const std::string& type, float value) {
  if (type == "float") {
    static_cast<float*>(data)[i] = value;
  } else if (type == "half") {
    static_cast<__half*>(data)[i] = __float2half(value);
  } else {
    static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16(value);
  }
}

/// FNV-1a.
std::uint64_t digest_of(const void* data, std::size_t bytes, std::uint64_t digest) {
  const auto* const first = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < bytes; ++i) digest = (digest ^ first[i]) * 1099511628211U;
  return digest;
}

}  // namespace

ncclDataType_t Case::nccl_type() const {
  return type == "float" ? ncclFloat32 : type == "half" ? ncclFloat16 : ncclBfloat16;
}
std::size_t Case::bytes() const {
  return count * (type == "float" ? 4 : 2);
}

Rank::Rank(const Options& options, int rank) : options_(options), rank_(rank) {
  int devices = 0;
  ONEBIT_CALL(cudaGetDeviceCount(&devices));
  device_ = rank % devices;
  ONEBIT_CALL(cudaSetDevice(device_));
  ONEBIT_CALL(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

Rank::~Rank() {
  if (comm_ != nullptr) ncclCommAbort(comm_);  // something failed
  cudaStreamDestroy(stream_);
}

void Rank::join(const ncclUniqueId& id) {
  ONEBIT_CALL(cudaSetDevice(device_));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = options_.blocking ? 1 : 0;
  ONEBIT_CALL(ncclCommInitRankConfig(&comm_, options_.ranks(), id, rank_, &config));
}

void Rank::await() const {
  for (;;) {
    ncclResult_t state = ncclSuccess;
    ONEBIT_CALL(ncclCommGetAsyncError(comm_, &state));
    check(state, "the communicator");
    if (state == ncclSuccess) return;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

/// Whole numbers, whose sums are exact, or for kIdentical any: a hash of the place as a number from -1 to 1.
float Rank::given(int rank, std::size_t i) const {
  if (options_.check == Check::kExact)
    return static_cast<float>((i * 5 + static_cast<std::size_t>(rank)) % 4);
  std::uint64_t z = (i + 1) * 0x9E3779B97F4A7C15U + static_cast<std::uint64_t>(rank) * 0xD1B54A32D192ED03U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return static_cast<float>(static_cast<std::int64_t>(z >> 40) - (1 << 23)) / (1 << 23);
}

double Rank::sum_of_given(std::size_t i) const {
  double sum = 0;
  for (int rank = 0; rank < options_.ranks(); ++rank) sum += static_cast<double>(given(rank, i));
  return sum;
}

void Rank::prepare(const Case& next) {
  case_ = next;
  results_ = 0;
  wrong_ = 0;
  first_error_ = 0;
  sum_.assign(next.count, 0);
  expected_.resize(next.count);
  for (std::size_t i = 0; i < next.count; ++i) {
    expected_[i] = sum_of_given(i) / (next.op == "avg" ? options_.ranks() : 1);
  }
  ONEBIT_CALL(cudaSetDevice(device_));
  const std::size_t bytes = std::max<std::size_t>(next.bytes(), 1);
  ONEBIT_CALL(cudaMallocHost(&host_, bytes));
  for (int i = 0; i < options_.aggregated; ++i) {
    ONEBIT_CALL(cudaMalloc(&send_.emplace_back(), bytes));
    receive_.push_back(send_.back());
    if (!next.in_place) ONEBIT_CALL(cudaMalloc(&receive_.back(), bytes));
  }
}

void Rank::fill() {
  ONEBIT_CALL(cudaSetDevice(device_));
  for (std::size_t i = 0; i < case_.count; ++i) store(host_, i, case_.type, given(rank_, i));
  for (void* const send : send_) {
    ONEBIT_CALL(cudaMemcpyAsync(send, host_, case_.bytes(), cudaMemcpyHostToDevice, stream_));
  }
}

void Rank::allreduce() const {
  for (std::size_t i = 0; i < send_.size(); ++i) {
    ONEBIT_CALL(ncclAllReduce(send_[i], receive_[i], case_.count, case_.nccl_type(), case_.nccl_op(), comm_,
                              stream_));
  }
}

void Rank::capture() {
  ONEBIT_CALL(cudaSetDevice(device_));
  ONEBIT_CALL(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
}

void Rank::launch_graph() const {
  ONEBIT_CALL(cudaSetDevice(device_));
  ONEBIT_CALL(cudaGraphLaunch(graph_, stream_));
}

void Rank::take() {
  if (graph_ == nullptr && options_.graph) {
    cudaGraph_t graph = nullptr;
    ONEBIT_CALL(cudaStreamEndCapture(stream_, &graph));
    ONEBIT_CALL(cudaGraphInstantiate(&graph_, graph, 0));
    ONEBIT_CALL(cudaGraphDestroy(graph));
    return;
  }
  ONEBIT_CALL(cudaSetDevice(device_));
  for (std::size_t i = 0; i < receive_.size(); ++i) take_one(i);
  ++results_;
}

void Rank::take_one(std::size_t buffer) {
  ONEBIT_CALL(cudaMemcpyAsync(host_, receive_[buffer], case_.bytes(), cudaMemcpyDeviceToHost, stream_));
  ONEBIT_CALL(cudaStreamSynchronize(stream_));
  digest_ = digest_of(host_, case_.bytes(), digest_);
  // An average of ranks whose number is no power of two is rounded, for each rank.
  const bool rounded = case_.op == "avg" && !std::has_single_bit(static_cast<unsigned>(options_.ranks()));
  for (std::size_t i = 0; i < case_.count; ++i) {
    const double want = expected_[i];
    const double error = std::fabs(static_cast<double>(load(host_, i, case_.type)) - want);
    if (!(error <= (rounded ? std::fabs(want) / 64 : 0))) ++wrong_;
    if (buffer > 0) continue;
    sum_[i] += static_cast<double>(load(host_, i, case_.type));
    if (results_ == 0) first_error_ += error / static_cast<double>(case_.count);
  }
}

bool Rank::judge() const {
  const std::string what = fmt::format("{} {} {} {}", case_.count, case_.type, case_.op,
                                       case_.in_place ? "in place" : "out of place");
  if (options_.check == Check::kExact) {
    if (wrong_ > 0) fmt::print(stderr, "rank {}: {}: {} elements are wrong\n", rank_, what, wrong_);
    return wrong_ == 0;
  }
  double error = 0;
  for (std::size_t i = 0; i < case_.count; ++i) {
    error += std::fabs(sum_[i] / results_ - expected_[i]) / static_cast<double>(case_.count);
  }
  if (rank_ == 0) {
    fmt::print("{}: mean |error| of the first result {:.5f}, of the mean of {} {:.5f}\n", what, first_error_,
               results_, error);
  }
  // Without compression all results are equal, rounded alike.
  const bool compressed = first_error_ > 0.02;
  return std::isfinite(error) && (!compressed || results_ < 8 || error < first_error_);
}

void Rank::release() {
  ONEBIT_CALL(cudaSetDevice(device_));
  ONEBIT_CALL(cudaStreamSynchronize(stream_));
  if (graph_ != nullptr) ONEBIT_CALL(cudaGraphExecDestroy(graph_));
  graph_ = nullptr;
  for (std::size_t i = 0; i < send_.size(); ++i) {
    ONEBIT_CALL(cudaFree(send_[i]));
    if (receive_[i] != send_[i]) ONEBIT_CALL(cudaFree(receive_[i]));
  }
  send_.clear();
  receive_.clear();
  ONEBIT_CALL(cudaFreeHost(host_));
}

void Rank::leave() {
  ONEBIT_CALL(ncclCommDestroy(comm_));
  comm_ = nullptr;
}

}  // namespace onebit::nccl_client
