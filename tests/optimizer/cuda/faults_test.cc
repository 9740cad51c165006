// What goes wrong with an optimizer in a GPU's memory is an error that says what, on all ranks, and in time.

#include <gmock/gmock.h>

#include "device_ranks.h"
#include "support/temporary_directory.h"

namespace onebit::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Tensors kTensors{.sizes = {100, 3000}};

/// Makes an optimizer of one tensor on the device.
onebitResult_t create(const TwinRank& here, void* parameters, std::size_t count, const void* mask = nullptr,
                      const char* settings = nullptr, onebitOptimizer_t* made = nullptr) {
  const auto config = short_config(onebitOneBitAdam);
  const onebitTensor_t tensor{
      "w", parameters, count, onebitFloat32, onebitFloat32, 0, static_cast<const std::uint8_t*>(mask)};
  const onebitDevice_t device{sizeof device, here.nccl_comm, here.stream, settings};
  onebitOptimizer_t optimizer = nullptr;
  const onebitResult_t result = onebitOptimizerCreateOnDevice(&optimizer, &config, &tensor, 1, &device);
  if (made != nullptr) {
    *made = optimizer;
  } else {
    EXPECT_TRUE(succeeded(onebitOptimizerDestroy(optimizer)));
  }
  return result;
}

TEST(DeviceFaults, MemoryOfAnotherKindIsRefusedByTheNameOfItsTensor) {
  run_twin_ranks(1, [](TwinRank& here) {
    std::vector<float> host(100);
    const Tensor device(404);
    EXPECT_EQ(create(here, host.data(), 100), onebitInvalidArgument);
    EXPECT_THAT(onebitGetLastError(nullptr),
                AllOf(HasSubstr("tensor 'w': its parameters"), HasSubstr("is the host's")));
    EXPECT_EQ(create(here, device.data(), 100, host.data()), onebitInvalidArgument);
    EXPECT_THAT(onebitGetLastError(nullptr), AllOf(HasSubstr("its mask"), HasSubstr("is the host's")));
    void* pinned = nullptr;
    EXPECT_CUDA(cudaMallocHost(&pinned, 400));
    EXPECT_EQ(create(here, pinned, 100), onebitInvalidArgument);
    EXPECT_CUDA(cudaFreeHost(pinned));
    EXPECT_EQ(create(here, static_cast<std::byte*>(device.data()) + 1, 100), onebitInvalidArgument);
    EXPECT_THAT(onebitGetLastError(nullptr), HasSubstr("not aligned to elements of 4 bytes"));
    void* managed = nullptr;
    EXPECT_CUDA(cudaMallocManaged(&managed, 400, cudaMemAttachGlobal));
    EXPECT_TRUE(succeeded(create(here, managed, 100)));
    EXPECT_CUDA(cudaFree(managed));
    EXPECT_CUDA(cudaSetDevice(1));
    {
      const Tensor other(400);
      EXPECT_EQ(create(here, other.data(), 100), onebitInvalidArgument);
      EXPECT_THAT(onebitGetLastError(nullptr),
                  HasSubstr("is that of CUDA device 1, but this optimizer's is that of"));
    }
    EXPECT_CUDA(cudaSetDevice(0));
  });
}

TEST(DeviceFaults, GradientsOfAnotherKindOfMemoryAreRefusedByTheNameOfTheirTensor) {
  run_twin_ranks(1, [](TwinRank& here) {
    const auto twins = here.twins(short_config(onebitOneBitLamb), kTensors);
    ASSERT_TRUE(twins->step(1));
    std::vector<float> host(3000);
    const Tensor device(12000);
    const void* const on_host[] = {nullptr, host.data()};
    EXPECT_EQ(onebitOptimizerStep(twins->device(), on_host, nullptr), onebitInvalidArgument);
    EXPECT_THAT(onebitGetLastError(nullptr), HasSubstr("the gradient of tensor 'layer1'"));
    const void* const on_device[] = {nullptr, device.data()};
    EXPECT_EQ(onebitOptimizerStep(twins->host(), on_device, nullptr), onebitInvalidArgument);
    EXPECT_THAT(onebitGetLastError(nullptr), AllOf(HasSubstr("the gradient of tensor 'layer1'"),
                                                   HasSubstr("onebitOptimizerCreateOnDevice")));
    ASSERT_TRUE(twins->step(2));
  });
}

TEST(DeviceFaults, TensorsOfAGpuAreRefusedByAnOptimizerOfTheHost) {
  run_twin_ranks(1, [](TwinRank& here) {
    const auto config = short_config(onebitAdam);
    const Tensor device(400);
    const onebitTensor_t tensor{"w", device.data(), 100, onebitFloat32, onebitFloat32, 0, nullptr};
    onebitOptimizer_t optimizer = nullptr;
    EXPECT_EQ(onebitOptimizerCreate(&optimizer, &config, &tensor, 1, here.comm), onebitInvalidArgument);
    EXPECT_THAT(onebitGetLastError(nullptr),
                AllOf(HasSubstr("tensor 'w': its parameters"), HasSubstr("onebitOptimizerCreateOnDevice")));
    EXPECT_EQ(optimizer, nullptr);
  });
}

TEST(DeviceFaults, ArgumentsOutOfTheirRangeAreRefused) {
  run_twin_ranks(1, [](TwinRank& here) {
    const Tensor device(400);
    EXPECT_EQ(create(here, device.data(), 100, nullptr, "ONEBIT_BLOCK=7"), onebitInvalidArgument);
    EXPECT_THAT(onebitGetLastError(nullptr), HasSubstr("ONEBIT_BLOCK"));
    const auto config = short_config(onebitAdam);
    onebitOptimizer_t optimizer = nullptr;
    EXPECT_EQ(onebitOptimizerCreateOnDevice(&optimizer, &config, nullptr, 0, nullptr), onebitInvalidArgument);
    EXPECT_THAT(onebitGetLastError(nullptr), HasSubstr("device must not be NULL"));
    const onebitDevice_t small{3, here.nccl_comm, here.stream, nullptr};
    EXPECT_EQ(onebitOptimizerCreateOnDevice(&optimizer, &config, nullptr, 0, &small), onebitInvalidArgument);
    EXPECT_THAT(onebitGetLastError(nullptr), HasSubstr("ONEBIT_DEVICE_INITIALIZER"));
    int number = 0;
    const onebitDevice_t nonsense{sizeof nonsense, &number, here.stream, nullptr};
    EXPECT_EQ(onebitOptimizerCreateOnDevice(&optimizer, &config, nullptr, 0, &nonsense),
              onebitInvalidArgument);
    EXPECT_THAT(onebitGetLastError(nullptr), HasSubstr("NCCL does not know the communicator"));
  });
}

TEST(DeviceFaults, WhereOneRankCannotMakeItNoRankDoesAndAllSayWhich) {
  run_twin_ranks(3, [](TwinRank& here) {
    std::vector<float> host(100);
    const Tensor device(400);
    const bool bad = here.rank == 2;
    const onebitResult_t result = create(here, bad ? host.data() : device.data(), 100);
    EXPECT_EQ(result, bad ? onebitInvalidArgument : onebitRemoteError);
    EXPECT_THAT(onebitGetLastError(nullptr),
                HasSubstr(bad ? "is the host's" : "rank 2 cannot make its optimizer"));
    EXPECT_TRUE(succeeded(create(here, device.data(), 100)));
  });
}

TEST(DeviceFaults, WithoutMemoryForTheStateIsAnErrorOnAllRanks) {
  run_twin_ranks(2, [](TwinRank& here) {
    constexpr std::size_t kHuge = std::size_t{1} << 33;  // 32 GiB an array
    const Tensor device(400);
    const bool bad = here.rank == 0;
    EXPECT_EQ(create(here, device.data(), bad ? kHuge : 100), bad ? onebitSystemError : onebitRemoteError);
    EXPECT_THAT(onebitGetLastError(nullptr), HasSubstr(bad ? "bytes of memory on CUDA device 0" : "rank 0"));
  });
}

TEST(DeviceFaults, RanksThatDifferAreNamedAndSayInWhat) {
  run_twin_ranks(2, [](TwinRank& here) {
    const auto expect_step_says = [](OptimizerTwins& twins, const char* what) {
      twins.set_gradients(1);
      EXPECT_EQ(twins.step_device(), onebitInvalidUsage);
      EXPECT_THAT(onebitGetLastError(nullptr), AllOf(HasSubstr("rank 1"), HasSubstr(what)));
    };
    const auto config = short_config(onebitOneBitLamb);
    const std::size_t own = here.rank == 1 ? 7 : 8;
    OptimizerTwins tensors(config, {{100, own}}, here.rank, nullptr, here.nccl_comm, here.stream);
    expect_step_says(tensors, "'layer1' of 7");
    OptimizerTwins blocks(config, kTensors, here.rank, nullptr, here.nccl_comm, here.stream,
                          here.rank == 1 ? "ONEBIT_BLOCK=512" : nullptr);
    expect_step_says(blocks, "ONEBIT_BLOCK 512");
    OptimizerTwins rates(config, kTensors, here.rank, nullptr, here.nccl_comm, here.stream);
    if (here.rank == 1) {
      EXPECT_TRUE(succeeded(onebitOptimizerSetLearningRate(rates.device(), 0, 0.5)));
    }
    expect_step_says(rates, "learning rates 0.5");
  });
}

/// Rank 1 does not take the step after `last`; the others' fails in time, and what they save is the state
/// before it, also while NCCL holds the stream up.
void expect_a_missing_rank_to_be_noticed(onebitOptimizerType_t type, int last) {
  const TemporaryDirectory directory;
  run_twin_ranks(2, [&](TwinRank& here) {
    OptimizerTwins twins(short_config(type), kTensors, here.rank, here.comm, here.nccl_comm, here.stream,
                         "ONEBIT_TIMEOUT=2s");
    ASSERT_TRUE(succeeded(twins.made()));
    for (int step = 1; step <= last; ++step) ASSERT_TRUE(twins.step(step));
    if (here.rank == 0) {
      const auto m = OptimizerTwins::state(twins.device(), 1, "exp_avg", 3000);
      twins.set_gradients(last + 1);
      EXPECT_EQ(twins.step_device(), onebitTimeout);
      EXPECT_THAT(onebitGetLastError(nullptr),
                  AllOf(HasSubstr("ONEBIT_TIMEOUT"), HasSubstr("ncclCommAbort")));
      EXPECT_EQ(OptimizerTwins::info(twins.device()).steps, last);
      EXPECT_EQ(OptimizerTwins::state(twins.device(), 1, "exp_avg", 3000), m);
      EXPECT_TRUE(succeeded(onebitOptimizerSave(twins.device(), directory.path().c_str())));
      EXPECT_EQ(twins.step_device(), onebitTimeout) << "the first failure is kept";
      EXPECT_EQ(onebitOptimizerLoad(twins.device(), directory.path().c_str()), onebitTimeout);
    }
    EXPECT_TRUE(succeeded(onebitBarrier(here.comm)));
    EXPECT_NCCL(ncclCommAbort(here.nccl_comm));
    here.nccl_comm = nullptr;
    EXPECT_TRUE(twins.same_parameters());
  });
  run_twin_ranks(2, [&](TwinRank& here) {
    const auto twins = here.twins(short_config(type), kTensors);
    ASSERT_TRUE(succeeded(onebitOptimizerLoad(twins->device(), directory.path().c_str())));
    ASSERT_TRUE(succeeded(onebitOptimizerLoad(twins->host(), directory.path().c_str())));
    EXPECT_EQ(OptimizerTwins::info(twins->device()).steps, last);
    for (int step = last + 1; step <= last + 3; ++step) ASSERT_TRUE(twins->step(step));
  });
}

TEST(DeviceFaults, ARankThatDoesNotStepIsATimeoutAndTheStateCanBeSaved) {
  for (const auto type : kAllTypes) {
    for (const int last : {3, 15, 24}) expect_a_missing_rank_to_be_noticed(type, last);
  }
}

/// NCCL's functions fail in the exchange itself, after the agreement.
TEST(DeviceFaults, ACommunicatorThatIsAbortedBetweenStepsIsAnErrorOfTheNext) {
  run_twin_ranks(2, [&](TwinRank& here) {
    OptimizerTwins twins(short_config(onebitOneBitAdam), kTensors, here.rank, here.comm, here.nccl_comm,
                         here.stream, "ONEBIT_TIMEOUT=2s");
    for (int step = 1; step <= 14; ++step) ASSERT_TRUE(twins.step(step));
    EXPECT_NCCL(ncclCommAbort(here.nccl_comm));
    here.nccl_comm = nullptr;
    twins.set_gradients(15);
    EXPECT_NE(twins.step_device(), onebitSuccess);
    EXPECT_TRUE(twins.same_parameters());
    EXPECT_EQ(OptimizerTwins::info(twins.device()).steps, 14);
  });
}

}  // namespace
}  // namespace onebit::testing
