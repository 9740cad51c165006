#include "optimizer/exchange.h"

#include <algorithm>
#include <numeric>

namespace onebit::optimizer {

using collective::Residual;

Status HostExchange::mean(float* data, std::size_t count) {
  return communicator_.all_reduce(data, data, count, DataType::kFloat32, ReduceOp::kAvg, "");
}

Status HostExchange::compressed_mean(float* data, std::size_t unit) {
  Unit& own = units_[unit];
  codec::Parameters parameters = communicator_.parameters();
  if (own.whole) parameters = {codec::kWhole, codec::Scale::kRms};
  return communicator_.compressed_all_reduce(data, own.residual.count, DataType::kFloat32, ReduceOp::kAvg,
                                             own.name, parameters, own.residual);
}

Status HostExchange::sum(std::span<double> values) {
  return communicator_.all_reduce(values.data(), values.data(), values.size(), DataType::kFloat64,
                                  ReduceOp::kSum, "");
}

Status HostExchange::add_unit(const std::string& name, std::size_t count, bool whole) {
  ONEBIT_ASSIGN_OR_RETURN(Residual residual,
                          Residual::create(count, DataType::kFloat32, ReduceOp::kAvg, rank(), ranks()));
  units_.push_back({name, whole, std::move(residual)});
  return Status();
}

Status HostExchange::set_residual(std::size_t unit, Residual residual) {
  units_[unit].residual = std::move(residual);
  return Status();
}

void HostExchange::clear_residuals() {
  for (Unit& unit : units_) {
    Residual& residual = unit.residual;
    std::fill_n(residual.worker_error.data(), residual.worker_error.size(), 0.0F);
    std::fill_n(residual.owner_error.data(), residual.owner_error.size(), 0.0F);
    residual.in_call = false;
  }
}

bool HostExchange::has_worthless_residuals() const {
  return std::any_of(units_.begin(), units_.end(), [](const Unit& unit) { return unit.residual.in_call; });
}

std::size_t HostExchange::residual_bytes() const {
  return std::accumulate(units_.begin(), units_.end(), std::size_t{0}, [](std::size_t sum, const Unit& unit) {
    return sum + unit.residual.worker_error.bytes() + unit.residual.owner_error.bytes();
  });
}

std::unique_ptr<HostExchange> make_exchange(collective::Communicator& communicator) {
  return std::make_unique<HostExchange>(communicator);
}

}  // namespace onebit::optimizer
