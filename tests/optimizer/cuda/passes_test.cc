// The passes on a device give the bits of the host's: arrays, 16-bit parameters, sums, and LAMB's steps.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "collective/nccl/tensor.h"
#include "device_jobs.h"
#include "optimizer/exchange.h"

namespace onebit::testing {
namespace {

using cuda_cpu::StreamGate;
using cuda_cpu::TestStream;
using optimizer::JobResult;
using optimizer::LambNumbers;
using optimizer::LambRule;
using optimizer::Pass;
using optimizer::Scalars;
using optimizer::cuda::PassQueue;

/// Ends of rows, warps and blocks, nothing among them; more tensors than a launch holds; a tensor of more
/// blocks than there are lanes to add them up.
std::vector<std::size_t> sizes() {
  std::vector<std::size_t> all{0,    1,    31,   32,   33,     63, 64,  65,  127, 255, 256,
                               2047, 2048, 2049, 4097, 10'007, 0,  300, 301, 302, 5,   6};
  for (std::size_t i = 0; i < 30; ++i) all.push_back(3 * i);
  all.push_back(70 * optimizer::kBlock + 1);
  return all;
}

Scalars scalars() {
  Scalars s;
  s.beta1 = 0.9F;
  s.rest1 = 0.1F;
  s.inverse1 = 10;
  s.beta2 = 0.999F;
  s.rest2 = 0.001F;
  s.eps = 1e-8F;
  s.weight_decay = 0.01F;
  s.step = 0.02F;
  s.root_scale = 1.5F;
  s.gradient_scale = 0.7F;
  s.momentum_factor = 0.3F;
  s.previous_factor = 0.4F;
  s.exchange_scale = 3;
  s.window = 0.05F;
  s.bound = 7.3F;
  s.accumulated_decay = 0.002F;
  return s;
}

float random_value(char array, std::size_t i) {
  Random random(static_cast<std::uint64_t>(array) * 1'000'003 + i);
  const float value = random.unit();
  if (array == 'v') return value < -0.5F ? 0.0F : std::abs(value);
  return array == 'f' ? std::abs(value) : value;
}
float zero(char, std::size_t) {
  return 0;
}
/// From subnormal to large, of both signs.
float wide(char array, std::size_t i) {
  const float value = std::ldexp(random_value(array, i), static_cast<int>(i % 160) - 130);
  return array == 'v' || array == 'f' ? std::abs(value) : value;
}
/// NaN and Inf of both signs here and there in the gradient.
float not_finite(char array, std::size_t i) {
  if (array != 'g' || i % 97 != 0) return random_value(array, i);
  const float infinity = std::numeric_limits<float>::infinity();
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity};
  return bad[i / 97 % 3];
}

class DevicePasses : public ::testing::Test {
 protected:
  DevicePasses() {
    auto made = lone_communicator();
    EXPECT_TRUE(made.ok()) << made.status().message();
    communicator_ = std::move(*made);
    exchange_ = optimizer::make_exchange(*communicator_);
  }
  std::unique_ptr<optimizer::Runner> host(const std::vector<std::size_t>& counts) {
    return optimizer::make_host_runner(*exchange_, counts);
  }
  std::unique_ptr<PassQueue> device(const std::vector<std::size_t>& counts) {
    auto made = PassQueue::create(counts, stream_);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(*made);
  }
  void fetch(PassQueue& queue, std::vector<optimizer::Job>& jobs) const {
    EXPECT_CUDA(queue.begin_fetch());
    stream_.synchronize();
    queue.end_fetch(jobs);
  }
  void fetch_numbers(PassQueue& queue, std::vector<LambNumbers>& numbers) const {
    if (queue.numbers() == nullptr) return;
    stream_.synchronize();
    EXPECT_CUDA(cudaMemcpy(numbers.data(), queue.numbers(), numbers.size() * sizeof numbers[0],
                           cudaMemcpyDeviceToHost));
    queue.take_numbers();
  }
  /// Every pass, on both.
  void expect_the_hosts_bits(const DeviceJobs::Value& value, DataType gradient_type, DataType parameter_type,
                             bool masked, bool gradient_masked = false,
                             const std::vector<std::size_t>& counts = sizes()) {
    const auto queue = device(counts);
    const auto runner = host(counts);
    for (std::size_t pass = 0; pass < optimizer::kPasses; ++pass) {
      SCOPED_TRACE("pass " + std::to_string(pass));
      DeviceJobs jobs(counts, value, gradient_type, parameter_type, masked, gradient_masked);
      jobs.set_scalars(scalars());
      runner->run(static_cast<Pass>(pass), jobs.host);
      EXPECT_CUDA(queue->run(static_cast<Pass>(pass), jobs.device));
      fetch(*queue, jobs.device);
      jobs.expect_same_results();
      jobs.expect_same_arrays();
      if (HasFatalFailure()) return;
    }
  }

  TestStream stream_;
  std::unique_ptr<collective::Communicator> communicator_;
  std::unique_ptr<optimizer::HostExchange> exchange_;
};

TEST_F(DevicePasses, GiveTheHostsBitsForRandomNumbers) {
  for (const bool masked : {false, true}) {
    expect_the_hosts_bits(random_value, DataType::kFloat32, DataType::kFloat32, masked);
  }
}

TEST_F(DevicePasses, GiveTheHostsBitsForZeros) {
  for (const bool masked : {false, true}) {
    expect_the_hosts_bits(zero, DataType::kFloat32, DataType::kBFloat16, masked);
  }
}

TEST_F(DevicePasses, GiveTheHostsBitsFromSubnormalToLarge) {
  for (const bool masked : {false, true}) {
    expect_the_hosts_bits(wide, DataType::kFloat32, DataType::kFloat32, masked);
  }
}

TEST_F(DevicePasses, GiveTheHostsBitsWhereGradientsAreNotFinite) {
  expect_the_hosts_bits(not_finite, DataType::kFloat32, DataType::kFloat32, false);
}

TEST_F(DevicePasses, GiveTheHostsBitsForGradientsAndParametersOf16Bits) {
  for (const DataType type : {DataType::kFloat16, DataType::kBFloat16}) {
    expect_the_hosts_bits(random_value, type, type, true);
  }
  expect_the_hosts_bits(random_value, DataType::kBFloat16, DataType::kFloat16, false);
}

TEST_F(DevicePasses, GiveTheHostsBitsWhereAMaskTakesGradientsAway) {
  for (const DataType type : {DataType::kFloat32, DataType::kFloat16}) {
    expect_the_hosts_bits(not_finite, type, DataType::kFloat32, false, true);
  }
}

TEST_F(DevicePasses, OfNoTensorsAndOfEmptyOnesAreNothing) {
  for (const auto& counts : {std::vector<std::size_t>{}, {0}, {0, 0, 0}}) {
    expect_the_hosts_bits(zero, DataType::kFloat32, DataType::kFloat32, false, false, counts);
  }
}

TEST_F(DevicePasses, FindOutAGradientThatIsNotFiniteOrTooLarge) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity(), 2e12F}) {
    for (const std::size_t at : {std::size_t{1}, std::size_t{2050}, std::size_t{5000}}) {
      const std::vector<std::size_t> counts{5000};
      const auto queue = device(counts);
      DeviceJobs jobs(
          counts, [&](char array, std::size_t i) { return array == 'g' && i == at ? bad : 1.0F; },
          DataType::kFloat32, DataType::kFloat32, false, false);
      jobs.set_scalars(scalars());
      for (const Pass pass : {Pass::kCheck, Pass::kGather, Pass::kMomentum, Pass::kSyncPrepare}) {
        EXPECT_CUDA(queue->run(pass, jobs.device));
        fetch(*queue, jobs.device);
        EXPECT_FALSE(jobs.device[0].result.largest <= optimizer::kLargestGradient);
      }
    }
  }
}

TEST_F(DevicePasses, BringWhatTheHostDoesIntoTheAgreement) {
  const auto agreement_of = [&](const std::vector<std::size_t>& counts, const DeviceJobs::Value& value) {
    const auto queue = device(counts);
    const auto runner = host(counts);
    DeviceJobs jobs(counts, value, DataType::kFloat32, DataType::kFloat32, false, false);
    jobs.set_scalars(scalars());
    optimizer::Agreement ours{.word = 17};
    runner->run(Pass::kCheck, jobs.host);
    EXPECT_TRUE(runner->agree(jobs.host, ours).ok());
    optimizer::Agreement theirs;
    const nccl::Tensor on_device(sizeof theirs);
    EXPECT_CUDA(queue->run(Pass::kCheck, jobs.device));
    EXPECT_CUDA(queue->bring_together(17, static_cast<optimizer::Agreement*>(on_device.data())));
    std::memcpy(&theirs, on_device.read(stream_).data(), sizeof theirs);
    EXPECT_EQ(std::memcmp(&ours, &theirs, sizeof ours), 0)
        << ours.skips << " " << ours.squares << " " << ours.norms << " and " << theirs.skips << " "
        << theirs.squares << " " << theirs.norms;
    return theirs;
  };
  std::vector<std::size_t> many = sizes();
  for (std::size_t i = 0; i < 1000; ++i) many.push_back(i % 40);  // more than threads that fetch them
  const auto both = agreement_of(many, random_value);
  EXPECT_EQ(both.skips, 0);
  EXPECT_GT(both.norms, 0);
  const auto bad = agreement_of(many, not_finite);
  EXPECT_EQ(bad.skips, 1);
  EXPECT_EQ(bad.squares, 0);
  EXPECT_EQ(agreement_of({}, zero).skips, 0);
}

TEST_F(DevicePasses, ScaleAsTheHostDoes) {
  for (const std::size_t count : {1, 255, 256, 100'003}) {
    std::vector<float> due(count);
    for (std::size_t i = 0; i < count; ++i) due[i] = wide('g', i);
    const auto bytes = std::as_bytes(std::span(due));
    const nccl::Tensor tensor(4 * count);
    tensor.write({bytes.begin(), bytes.end()}, stream_);
    EXPECT_CUDA(optimizer::cuda::scale(static_cast<float*>(tensor.data()), count, 1.0F / 3, stream_));
    for (float& each : due) each *= 1.0F / 3;
    EXPECT_EQ(std::memcmp(tensor.read(stream_).data(), due.data(), 4 * count), 0) << count;
  }
}

// ---- LAMB's steps ----

std::vector<LambRule> rules_of(const std::vector<optimizer::Job>& jobs, bool frozen, bool by_norms,
                               bool compat) {
  std::vector<LambRule> rules;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    rules.push_back({.lr = 0.01,
                     .weight_decay = i % 3 == 0 ? 0.0 : 0.01,
                     .min_coeff = 0.01,
                     .max_coeff = 0.3,
                     .coeff_beta = 0.9,
                     .factor_min = 0.5,
                     .factor_max = 4,
                     .factor_threshold = 0.1,
                     .averages = !frozen,
                     .frozen = frozen,
                     .by_norms = by_norms,
                     .compat = compat,
                     .masked = jobs[i].masked});
  }
  return rules;
}

TEST_F(DevicePasses, OfLambTakeTheHostsStepsFromTheWarmUpIntoTheCompressedStage) {
  for (const auto& [by_norms, compat] : {std::pair(true, false), {false, false}, {false, true}}) {
    const auto counts = sizes();
    const auto queue = device(counts);
    const auto runner = host(counts);
    DeviceJobs jobs(counts, random_value, DataType::kFloat32, DataType::kBFloat16, true, false);
    std::vector<LambNumbers> ours(counts.size()), theirs(counts.size());
    for (int step = 0; step < 36; ++step) {
      const bool frozen = step >= 3;
      const Pass norms = !frozen ? Pass::kLambNorms : by_norms ? Pass::kNorms : Pass::kLambFrozen;
      jobs.set_scalars(scalars());
      const auto rules = rules_of(jobs.host, frozen, by_norms, compat);
      runner->run(norms, jobs.host);
      runner->choose_steps(rules, jobs.host, ours);
      runner->run(Pass::kApply, jobs.host);
      EXPECT_CUDA(queue->run(norms, jobs.device));
      EXPECT_CUDA(queue->choose_steps(rules, theirs));
      EXPECT_CUDA(queue->run(Pass::kApply, jobs.device));
      if (step % 2 != 0) continue;
      fetch_numbers(*queue, theirs);  // a checkpoint, say
    }
    fetch_numbers(*queue, theirs);
    for (std::size_t i = 0; i < ours.size(); ++i) {
      EXPECT_EQ(ours[i].coefficient, theirs[i].coefficient) << i;
      EXPECT_EQ(ours[i].average, theirs[i].average) << i;
      EXPECT_EQ(ours[i].average_weight, theirs[i].average_weight) << i;
      EXPECT_EQ(ours[i].reference, theirs[i].reference) << i;
      EXPECT_EQ(ours[i].last_factor, theirs[i].last_factor) << i;
    }
    EXPECT_NE(theirs[5].last_factor, 1);
    jobs.expect_same_arrays();
  }
}

TEST_F(DevicePasses, TakeNumbersThatTheHostHasChanged) {
  const std::vector<std::size_t> counts{100};
  const auto queue = device(counts);
  DeviceJobs jobs(counts, random_value, DataType::kFloat32, DataType::kFloat32, false, false);
  jobs.set_scalars(scalars());
  const auto rules = rules_of(jobs.device, true, false, false);
  std::vector<LambNumbers> numbers(1);
  for (const double last : {1.0, 0.6}) {
    fetch_numbers(*queue, numbers);
    numbers[0].last_factor = last;
    EXPECT_CUDA(queue->run(Pass::kLambFrozen, jobs.device));
    EXPECT_CUDA(queue->choose_steps(rules, numbers));
    fetch_numbers(*queue, numbers);
    EXPECT_NEAR(numbers[0].last_factor, last, 0.1 * last + 1e-12);
  }
}

TEST_F(DevicePasses, WaitForTheDeviceOnlyWhereResultsAreFetched) {
  const std::vector<std::size_t> counts{3000, 5};
  const auto queue = device(counts);
  DeviceJobs jobs(counts, random_value, DataType::kFloat32, DataType::kFloat32, false, false);
  jobs.set_scalars(scalars());
  const auto rules = rules_of(jobs.device, false, false, false);
  std::vector<LambNumbers> numbers(counts.size());
  const auto step = [&] {
    EXPECT_CUDA(queue->run(Pass::kLambNorms, jobs.device));
    EXPECT_CUDA(queue->choose_steps(rules, numbers));
    EXPECT_CUDA(queue->run(Pass::kApply, jobs.device));
  };
  step();
  const StreamGate gate;
  gate.stop(stream_);
  step();  // would never return if it waited
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
  gate.open();
  fetch(*queue, jobs.device);
}

}  // namespace
}  // namespace onebit::testing
