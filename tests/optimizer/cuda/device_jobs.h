// Tensors of an optimizer twice, in the host's memory and on a device, with the same bits to begin with.
//
// Threads: of one thread.
#pragma once

#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda_cpu/test_streams.h"
#include "optimizer/cuda/pass_queue.h"
#include "optimizer/local_ranks.h"
#include "optimizer/runner.h"
#include "support/random.h"

namespace onebit::testing {

/// Bytes of the host, and of the device a copy.
class Twins {
 public:
  explicit Twins(std::size_t bytes) : host_(bytes) {
    EXPECT_CUDA(cudaMalloc(reinterpret_cast<void**>(&device_), std::max<std::size_t>(bytes, 1)));
  }
  Twins(const Twins&) = delete;
  Twins& operator=(const Twins&) = delete;
  ~Twins() {
    EXPECT_CUDA(cudaFree(device_));  // of null does nothing
  }
  template <typename T>
  T* host() {
    return reinterpret_cast<T*>(host_.data());
  }
  template <typename T>
  T* device() const {
    return reinterpret_cast<T*>(device_);
  }
  std::size_t bytes() const { return host_.size(); }
  void upload() const {
    EXPECT_CUDA(cudaMemcpy(device_, host_.data(), host_.size(), cudaMemcpyHostToDevice));
  }
  std::vector<std::byte> download() const {
    std::vector<std::byte> bytes(host_.size());
    EXPECT_CUDA(cudaMemcpy(bytes.data(), device_, bytes.size(), cudaMemcpyDeviceToHost));
    return bytes;
  }

 private:
  std::vector<std::byte> host_;
  std::byte* device_ = nullptr;
};

/// Equal bits; any NaN is as good as any other.
inline bool same_float(float a, float b) {
  return (a != a && b != b) || std::memcmp(&a, &b, sizeof a) == 0;
}

struct DeviceJobs {
  /// What a test fills the arrays with: `value(array, i)`, arrays named by their letter in passes.h.
  using Value = std::function<float(char array, std::size_t i)>;

  std::vector<optimizer::Job> host, device;

  /// One array a letter, tensors behind each other as in an optimizer, from an odd element on.
  DeviceJobs(const std::vector<std::size_t>& counts, const Value& value, DataType gradient_type,
             DataType parameter_type, bool masked, bool gradient_masked)
      : host(counts.size()), device(counts.size()) {
    std::size_t all = 1;
    for (const std::size_t count : counts) all += count;
    for (const char letter : std::string("xmvfwzc")) {
      Twins& twins = twins_.emplace_back(4 * all);
      for (std::size_t i = 0; i < all; ++i) twins.host<float>()[i] = value(letter, i);
    }
    Twins& gradient = twins_.emplace_back(size_of(gradient_type) * all);
    for (std::size_t i = 0; i < all; ++i) put(gradient_type, value('g', i), gradient.host<std::byte>(), i);
    Twins& mask = twins_.emplace_back(all);
    for (std::size_t i = 0; i < all; ++i) mask.host<std::uint8_t>()[i] = i % 3 != 0;
    Twins& narrow = twins_.emplace_back(size_of(parameter_type) * all);
    for (const Twins& each : twins_) each.upload();
    std::size_t at = 1;
    for (std::size_t i = 0; i < counts.size(); at += counts[i++]) {
      const auto set = [&](optimizer::Job& job, auto of) {
        job.count = counts[i];
        float** const arrays[] = {&job.arrays.x, &job.arrays.m, &job.arrays.v, &job.arrays.f,
                                  &job.arrays.w, &job.arrays.z, &job.arrays.c};
        for (std::size_t k = 0; k < 7; ++k) *arrays[k] = reinterpret_cast<float*>(of(twins_[k])) + at;
        // Every seventh tensor has no gradient.
        job.gradient = i % 7 == 6 ? nullptr : of(gradient) + size_of(gradient_type) * at;
        job.gradient_type = gradient_type;
        if (gradient_masked) job.gradient_mask = reinterpret_cast<std::uint8_t*>(of(mask)) + at;
        if (parameter_type != DataType::kFloat32) {
          job.narrow_parameters = of(narrow) + size_of(parameter_type) * at;
        }
        job.narrow_type = parameter_type;
        job.masked = masked && i % 2 == 0;
      };
      set(host[i], [](Twins& twins) { return twins.host<std::byte>(); });
      set(device[i], [](Twins& twins) { return twins.device<std::byte>(); });
    }
  }

  void set_scalars(const optimizer::Scalars& scalars) {
    for (optimizer::Job& job : host) job.scalars = scalars;
    for (optimizer::Job& job : device) job.scalars = scalars;
  }

  /// After the device is done.
  void expect_same_arrays() {
    for (std::size_t k = 0; k < 7; ++k) {
      const auto bytes = twins_[k].download();
      const auto* const theirs = reinterpret_cast<const float*>(bytes.data());
      const float* const ours = twins_[k].host<float>();
      for (std::size_t i = 0; i < bytes.size() / 4; ++i) {
        ASSERT_TRUE(same_float(ours[i], theirs[i]))
            << "array "
            << "xmvfwzc"[k] << ", element " << i << ": " << ours[i] << " and " << theirs[i];
      }
    }
    Twins& narrow = twins_.back();
    EXPECT_EQ(std::memcmp(narrow.download().data(), narrow.host<std::byte>(), narrow.bytes()), 0) << "narrow";
  }
  void expect_same_results() const {
    for (std::size_t i = 0; i < host.size(); ++i) {
      const auto& ours = host[i].result;
      const auto& theirs = device[i].result;
      const auto same = [](double a, double b) { return (a != a && b != b) || a == b; };
      ASSERT_TRUE(same(ours.first, theirs.first) && same(ours.second, theirs.second) &&
                  same_float(ours.largest, theirs.largest))
          << "tensor " << i << " of " << host[i].count << ": " << ours.first << " " << ours.second << " "
          << ours.largest << " and " << theirs.first << " " << theirs.second << " " << theirs.largest;
    }
  }

 private:
  static void put(DataType type, float value, std::byte* to, std::size_t i) {
    optimizer::find_passes("").narrow(type, &value, 1, to + size_of(type) * i);
  }

  std::deque<Twins> twins_;
};

}  // namespace onebit::testing
