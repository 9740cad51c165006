// The CUDA kernels against a device copy that moves as many bytes, in one run on one GPU: each kernel's bytes
// are those it must read and write (docs/gpu.md), the copy's are read and written too. Times are the medians
// of event pairs around several launches; arrays are far above the L2 cache. --json FILE writes the table.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "codec/cuda/kernels.h"

namespace onebit::perf {
namespace {

namespace cuda = codec::cuda;

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(fmt::format("{}: {}", what, cudaGetErrorString(error)));
}

/// Device memory of zeros.
template <typename T>
class Array {
 public:
  explicit Array(std::size_t bytes) {
    check(cudaMalloc(&data_, bytes), "cudaMalloc");
    check(cudaMemset(data_, 0, bytes), "cudaMemset");
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { cudaFree(data_); }
  T* data() const { return static_cast<T*>(data_); }

 private:
  void* data_ = nullptr;
};

struct Options {
  std::size_t elements = std::size_t{256} << 20;
  std::uint32_t block = 2048;
  unsigned ranks = 8;
  int launches = 5;
  int repetitions = 9;
  std::string json;
};

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    check(cudaEventCreate(&begin_), "cudaEventCreate");
    check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;
  ~Bench() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }

  cudaStream_t stream() const { return stream_; }

  /// Bytes a second of `launch`, which moves `bytes`, beside a copy's that moves as many; and their ratio.
  void measure(const std::string& name, std::size_t bytes, const std::function<cudaError_t()>& launch) {
    const Array<std::byte> from(bytes / 2), to(bytes / 2);
    const auto copy = [&] {
      return cudaMemcpyAsync(to.data(), from.data(), bytes / 2, cudaMemcpyDeviceToDevice, stream_);
    };
    std::vector<double> own, copied;
    for (int i = 0; i < options_.repetitions; ++i) {  // in turns, so that both see the same clocks
      own.push_back(seconds(launch));
      copied.push_back(seconds(copy));
    }
    const double rate = static_cast<double>(bytes) / median(own);
    const double copy_rate = static_cast<double>(bytes) / median(copied);
    fmt::print("{:32} {:8.1f} GB/s   copy {:8.1f} GB/s   ratio {:.3f}\n", name, rate / 1e9, copy_rate / 1e9,
               rate / copy_rate);
    results_[name] = {{"bytes", bytes},
                      {"bytes_per_second", rate},
                      {"copy_bytes_per_second", copy_rate},
                      {"ratio", rate / copy_rate}};
  }

  const nlohmann::ordered_json& results() const { return results_; }

 private:
  /// Of one launch, from several in a row.
  double seconds(const std::function<cudaError_t()>& launch) {
    check(launch(), "launch");
    check(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    for (int i = 0; i < options_.launches; ++i) check(launch(), "launch");
    check(cudaEventRecord(end_, stream_), "cudaEventRecord");
    check(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return std::max(milliseconds, 1e-6F) / 1e3 / options_.launches;
  }
  static double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                     values.end());
    return values[values.size() / 2];
  }

  const Options options_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  nlohmann::ordered_json results_;
};

void run(const Options& options) {
  Bench bench(options);
  const std::size_t n = options.elements;
  const codec::Parameters parameters = {options.block, codec::Scale::kRms};
  const std::size_t scale_bytes = 4 * codec::scale_count(n, options.block);
  const std::size_t bit_bytes = cuda::packed_bit_bytes(n);
  const std::size_t packed = scale_bytes + bit_bytes;
  const std::size_t stride = (packed + 15) / 16 * 16;
  const Array<std::byte> tensor(4 * n), error(4 * n), pieces(stride * options.ranks);
  auto* const bits = reinterpret_cast<std::uint32_t*>(pieces.data());
  auto* const scales = reinterpret_cast<float*>(pieces.data() + bit_bytes);
  const Array<std::byte> averaged(stride);
  for (const DataType type : {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16}) {
    for (const auto kept : {cuda::ErrorType::kFloat32, cuda::ErrorType::kBFloat16}) {
      const bool wide = kept == cuda::ErrorType::kFloat32;
      const cuda::EncodePiece piece = {tensor.data(), error.data(), bits, scales, n};
      bench.measure(fmt::format("encode {}{}", name_of(type), wide ? "" : ", errors in bf16"),
                    n * (size_of(type) + (wide ? 8 : 4)) + packed, [&] {
                      return cuda::encode(type, kept, {&piece, 1}, parameters, bench.stream());
                    });
    }
    const cuda::DecodePiece piece = {bits, scales, tensor.data(), n};
    bench.measure(fmt::format("decode {}", name_of(type)), n * size_of(type) + packed, [&] {
      return cuda::decode(type, {&piece, 1}, parameters, bench.stream());
    });
  }
  for (const unsigned ranks : {2U, options.ranks}) {
    const cuda::AveragePiece piece = {bits,
                                      scales,
                                      stride,
                                      error.data(),
                                      reinterpret_cast<std::uint32_t*>(averaged.data()),
                                      reinterpret_cast<float*>(averaged.data() + bit_bytes),
                                      nullptr,
                                      n};
    bench.measure(fmt::format("average of {} ranks", ranks), n * 8 + (ranks + 1) * packed, [&] {
      return cuda::average(cuda::ErrorType::kFloat32, {&piece, 1}, ranks, 1.0F / static_cast<float>(ranks),
                           parameters, bench.stream());
    });
  }
  if (!options.json.empty()) std::ofstream(options.json) << bench.results().dump(1) << "\n";
}

}  // namespace
}  // namespace onebit::perf

int main(int argc, char** argv) {
  onebit::perf::Options options;
  CLI::App app("The codec's CUDA kernels against a device copy.");
  app.add_option("-n,--elements", options.elements, "Elements of the tensor");
  app.add_option("-b,--block", options.block, "Elements a block");
  app.add_option("-w,--ranks", options.ranks, "Ranks whose pieces are averaged");
  app.add_option("--json", options.json, "Write the results to this file");
  CLI11_PARSE(app, argc, argv);
  try {
    onebit::perf::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "cuda_codec_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
