// Checkpoint::save: a rank's file of the state.

#include "base/log.h"
#include "collective/shard_file.h"
#include "optimizer/checkpoint.h"
#include "optimizer/checkpoint_format.h"
#include "optimizer/optimizer.h"

namespace onebit::optimizer {

using collective::PartitionPlan;
using collective::Range;
using collective::Residual;
using collective::ShardWriter;

Status Checkpoint::save(const std::string& directory, bool whole) {
  Core& core = *optimizer_.core_;
  const Layout& layout = core.layout();
  Exchange& exchange = core.exchange();
  ONEBIT_RETURN_IF_ERROR(optimizer_.algorithm_->fetch_numbers());
  // The weights travel as an array, through the scratch.
  for (const Job& job : core.jobs()) std::copy(job.arrays.w, job.arrays.w + job.count, job.arrays.x);
  auto arrays = optimizer_.algorithm_->arrays();
  arrays.push_back({&core.x(), optimizer_.in_common()});
  const std::string text = describe_tensors(layout);
  std::vector<double> numbers;
  optimizer_.visit_numbers([&](double& number) { numbers.push_back(number); });
  StateHeader header{};
  header.magic = kStateMagic;
  header.version = kStateVersion;
  header.ranks = static_cast<std::uint32_t>(exchange.ranks());
  header.rank = static_cast<std::uint32_t>(exchange.rank());
  header.kind = static_cast<std::uint8_t>(core.options().kind);
  header.compat = core.compat() ? 1 : 0;
  header.whole = whole ? 1 : 0;
  header.stamp = collective::SaveStamp::now({exchange.job(), static_cast<std::uint64_t>(core.step)});
  header.elements = used_elements(layout);
  header.text = text.size();
  header.numbers = static_cast<std::uint32_t>(numbers.size());
  header.arrays = static_cast<std::uint32_t>(arrays.size());
  for (std::size_t i = 0; i < arrays.size(); ++i) header.own_arrays |= arrays[i].shared ? 0U : 1U << i;
  header.residuals = static_cast<std::uint32_t>(core.residuals().size());
  const std::string path = collective::shard_path(directory, core.options().name, kStateExtension,
                                                  exchange.rank(), exchange.ranks());

  const auto write = [&](ShardWriter& writer) -> Status {
    const auto write_range = [&](const Array& array, Range range) {
      return for_stretches(layout, range, [&](std::size_t begin, std::size_t length) {
        return writer.write(array.data() + begin, length * sizeof(float));
      });
    };
    ONEBIT_RETURN_IF_ERROR(writer.write(&header, sizeof header));
    ONEBIT_RETURN_IF_ERROR(writer.write(text.data(), text.size()));
    ONEBIT_RETURN_IF_ERROR(writer.write(numbers.data(), numbers.size() * sizeof(double)));
    ONEBIT_RETURN_IF_ERROR(writer.write_checksum());
    const Range all{0, header.elements};
    const Range shard =
        whole ? all : PartitionPlan(header.elements, exchange.ranks(), 1).partition(exchange.rank());
    for (const StateArray& array : arrays) {
      if (array.shared) ONEBIT_RETURN_IF_ERROR(write_range(*array.array, shard));
    }
    ONEBIT_RETURN_IF_ERROR(writer.write_checksum());
    for (const StateArray& array : arrays) {
      if (!array.shared) ONEBIT_RETURN_IF_ERROR(write_range(*array.array, all));
    }
    ONEBIT_RETURN_IF_ERROR(for_padding(layout, [&](std::size_t begin, std::size_t length) {
      return writer.write(core.m().data() + begin, length * sizeof(float));
    }));
    for (const Residual& residual : core.residuals()) {
      const ResidualHeader head{residual.count, residual.owner_error.size()};
      ONEBIT_RETURN_IF_ERROR(writer.write(&head, sizeof head));
      ONEBIT_RETURN_IF_ERROR(writer.write(residual.worker_error.data(), residual.worker_error.bytes()));
      ONEBIT_RETURN_IF_ERROR(writer.write(residual.owner_error.data(), residual.owner_error.bytes()));
    }
    return writer.write_checksum();
  };
  if (std::any_of(core.residuals().begin(), core.residuals().end(),
                  [](const auto& each) { return each.in_call; })) {
    log(LogLevel::kWarn,
        "optimizer '{}': residuals are saved as 0, as the step that was changing them failed",
        core.options().name);
    core.clear_residuals();
  }
  return collective::write_shard(directory, path, write).with_context(fmt::format("save to {}", path));
}

}  // namespace onebit::optimizer
