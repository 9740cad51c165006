// Without the libraries that an optimizer in a GPU's memory needs, making one says which is missing. The
// program has no NCCL.

#include <gmock/gmock.h>
#include <onebit/optimizer.h>

#include <cstdlib>

#include "support/ranks.h"

namespace onebit::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

onebitResult_t create(void* nccl_comm, const char* settings) {
  onebitOptimizerConfig_t config;
  EXPECT_TRUE(succeeded(onebitOptimizerConfigInit(onebitAdam, &config)));
  const onebitDevice_t device{sizeof device, nccl_comm, nullptr, settings};
  onebitOptimizer_t optimizer = nullptr;
  const onebitResult_t result = onebitOptimizerCreateOnDevice(&optimizer, &config, nullptr, 0, &device);
  EXPECT_TRUE(succeeded(onebitOptimizerDestroy(optimizer)));
  return result;
}

TEST(Missing, LibraryOfTheCudaPartsIsNamed) {
  EXPECT_EQ(create(nullptr, "ONEBIT_CUDA_LIBRARY=/nowhere/libonebit-cuda.so"), onebitSystemError);
  EXPECT_THAT(onebitGetLastError(nullptr), AllOf(HasSubstr("/nowhere/"), HasSubstr("ONEBIT_CUDA_LIBRARY")));
}

TEST(Missing, NcclIsNamed) {
  int nobody = 0;
  EXPECT_EQ(create(&nobody, nullptr), onebitInvalidUsage);
  EXPECT_THAT(onebitGetLastError(nullptr), AllOf(HasSubstr("NCCL"), HasSubstr("ONEBIT_NCCL_LIBRARY")));
}

TEST(Missing, NcclThatIsNamedButIsNoneIsNamed) {
  int nobody = 0;
  EXPECT_EQ(create(&nobody, "ONEBIT_NCCL_LIBRARY=/nowhere/libnccl.so.2"), onebitInvalidUsage);
  EXPECT_THAT(onebitGetLastError(nullptr), HasSubstr("ONEBIT_NCCL_LIBRARY"));
}

TEST(Missing, NcclIsNotNeededByOneRank) {
  EXPECT_TRUE(succeeded(create(nullptr, nullptr)));
}

}  // namespace
}  // namespace onebit::testing
