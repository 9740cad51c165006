#include "optimizer/exchange.h"

namespace onebit::optimizer {
namespace {

class CommunicatorExchange final : public Exchange {
 public:
  explicit CommunicatorExchange(collective::Communicator& communicator) : communicator_(communicator) {}
  std::size_t rank() const override { return communicator_.rank(); }
  std::size_t ranks() const override { return communicator_.ranks(); }
  std::uint64_t job() const override { return communicator_.job(); }
  Status usable() const override { return communicator_.async_error(); }
  std::string_view implementation() const override { return communicator_.implementation(); }

  Status mean(float* data, std::size_t count) override {
    return communicator_.all_reduce(data, data, count, DataType::kFloat32, ReduceOp::kAvg, "");
  }
  Status compressed_mean(float* data, std::size_t count, std::string_view name, bool whole,
                         collective::Residual& residual) override {
    codec::Parameters parameters = communicator_.parameters();
    if (whole) parameters = {codec::kWhole, codec::Scale::kRms};
    return communicator_.compressed_all_reduce(data, count, DataType::kFloat32, ReduceOp::kAvg, name,
                                               parameters, residual);
  }
  Status sum(std::span<double> values) override {
    return communicator_.all_reduce(values.data(), values.data(), values.size(), DataType::kFloat64,
                                    ReduceOp::kSum, "");
  }
  Status all_gather(const void* send, void* receive, std::size_t bytes) override {
    return communicator_.all_gather(send, receive, bytes);
  }

 protected:
  void run_parallel(std::size_t count, void (*body)(const void* context, std::size_t i),
                    const void* context) override {
    communicator_.parallel(count, [=](std::size_t i) { body(context, i); });
  }

 private:
  collective::Communicator& communicator_;
};

}  // namespace

std::unique_ptr<Exchange> make_exchange(collective::Communicator& communicator) {
  return std::make_unique<CommunicatorExchange>(communicator);
}

}  // namespace onebit::optimizer
