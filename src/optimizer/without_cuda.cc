// What a build without a CUDA toolkit says of optimizers in device memory.

#include "optimizer/device_exchange.h"

namespace onebit::optimizer {

Result<std::unique_ptr<Exchange>> make_device_exchange(const Settings& /*settings*/,
                                                       const DevicePlace& /*place*/) {
  return Status(
      Code::kInvalidUsage,
      "this libonebit.so was built without the CUDA toolkit: build it with one (ONEBIT_CUDA=ON) for "
      "optimizers in a GPU's memory");
}

}  // namespace onebit::optimizer
