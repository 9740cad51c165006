// Messages by NCCL, on the caller's communicator. Steps that overlap with other work run on a stream of their
// own.
#pragma once

#include <array>

#include "base/status.h"
#include "collective/nccl/wire.h"

namespace onebit::nccl {

class NcclWire final : public Wire {
 public:
  NcclWire(const Functions& nccl, Comm comm, int device, unsigned ranks, unsigned rank)
      : nccl_(nccl), comm_(comm), device_(device), ranks_(ranks), rank_(rank) {}
  NcclWire(const NcclWire&) = delete;
  NcclWire& operator=(const NcclWire&) = delete;
  ~NcclWire() override;
  /// Makes its stream and events.
  cudaError_t open();

  Result begin(const Step& step, cudaStream_t stream) override;
  Result move(const Step& step, cudaStream_t stream) override;
  Result begun(const Step& step) override;
  Result await(const Step& step, cudaStream_t stream) override;

 private:
  Result exchange_pieces(const Step& step, cudaStream_t stream);

  const Functions& nccl_;
  const Comm comm_;
  const int device_;
  const unsigned ranks_, rank_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr;
  std::array<cudaEvent_t, Step::kSteps> ends_{};
};

}  // namespace onebit::nccl
