// A Runner of libonebit-cuda.so's table does what the host's does.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "device_jobs.h"
#include "optimizer/cuda/device_runner.h"

namespace onebit::testing {
namespace {

using cuda_cpu::TestStream;
using optimizer::LambNumbers;
using optimizer::LambRule;
using optimizer::Pass;

const cuda::Library& library() {
  static const cuda::Library* const found = [] {
    void* const opened = ::dlopen(std::getenv("ONEBIT_CUDA_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(opened, nullptr) << ::dlerror();
    using Find = const cuda::Library* (*)();
    return reinterpret_cast<Find>(::dlsym(opened, cuda::kLibrarySymbol))();
  }();
  return *found;
}

float value(char array, std::size_t i) {
  Random random(static_cast<std::uint64_t>(array) + i);
  const float drawn = random.unit();
  return array == 'v' || array == 'f' ? drawn * drawn : drawn;
}

TEST(DeviceRunner, StepsLambAsTheHostsDoes) {
  const std::vector<std::size_t> counts{5000, 0, 31, 2048};
  const TestStream stream;
  auto made = lone_communicator();
  ASSERT_TRUE(made.ok());
  const auto exchange = optimizer::make_exchange(**made);
  const auto host = optimizer::make_host_runner(*exchange, counts);
  auto device = optimizer::make_device_runner(library(), counts, stream);
  ASSERT_TRUE(device.ok()) << device.status().message();
  DeviceJobs jobs(counts, value, DataType::kFloat32, DataType::kFloat16, false, false);
  optimizer::Scalars scalars;
  scalars.beta1 = scalars.beta2 = 0.9F;
  scalars.rest1 = scalars.rest2 = 0.1F;
  scalars.eps = 1e-8F;
  jobs.set_scalars(scalars);
  const std::vector<LambRule> rules(counts.size(),
                                    {.lr = 0.1, .max_coeff = 10, .coeff_beta = 0.9, .averages = true});
  std::vector<LambNumbers> ours(counts.size()), theirs(counts.size());
  const auto step = [&](optimizer::Runner& runner, std::vector<optimizer::Job>& own,
                        std::vector<LambNumbers>& numbers) {
    runner.run(Pass::kGather, own);
    EXPECT_TRUE(runner.fetch(own).ok());
    EXPECT_LE(own[0].result.largest, 1);
    runner.run(Pass::kLambNorms, own);
    runner.choose_steps(rules, own, numbers);
    runner.run(Pass::kApply, own);
    EXPECT_TRUE(runner.fetch_numbers(numbers).ok());
  };
  step(*host, jobs.host, ours);
  step(**device, jobs.device, theirs);
  for (std::size_t i = 0; i < counts.size(); ++i) EXPECT_EQ(ours[i].average, theirs[i].average);
  EXPECT_GT(ours[0].average, 0);
  jobs.expect_same_arrays();
}

TEST(DeviceRunner, RunsNothingAfterAnErrorAndSaysWhichItWas) {
  const TestStream stream;
  const std::vector<std::size_t> counts{100};
  cuda::Library failing = library();
  failing.run_pass = [](optimizer::cuda::PassQueue*, Pass, const optimizer::Job*, std::size_t) {
    return cudaErrorInvalidValue;
  };
  auto made = optimizer::make_device_runner(failing, counts, stream);
  ASSERT_TRUE(made.ok());
  DeviceJobs jobs(counts, value, DataType::kFloat32, DataType::kFloat32, false, false);
  (*made)->run(Pass::kGather, jobs.device);
  std::vector<LambNumbers> numbers(1);
  for (const Status& status : {(*made)->fetch(jobs.device), (*made)->fetch_numbers(numbers)}) {
    EXPECT_EQ(status.code(), Code::kSystemError);
    EXPECT_NE(status.message().find(cudaGetErrorString(cudaErrorInvalidValue)), std::string::npos)
        << status.message();
  }
}

TEST(DeviceRunner, ThatGetsNoMemorySaysSo) {
  const TestStream stream;
  const std::vector<std::size_t> counts{std::size_t{1} << 44};  // 96 GiB of partial sums
  const auto made = optimizer::make_device_runner(library(), counts, stream);
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.status().message().find("memory"), std::string::npos) << made.status().message();
}

}  // namespace
}  // namespace onebit::testing
