// Checkpoint::save: a rank's file of the state.

#include <algorithm>
#include <vector>

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

namespace {

/// Elements that are brought to the host at once.
constexpr std::size_t kPiece = std::size_t{1} << 20;

/// Writes the stretch of an array (null: the weights) through `buffer`.
Status write_stretch(Core& core, const Array* array, std::size_t begin, std::size_t length,
                     std::vector<float>& buffer, ShardWriter& writer) {
  buffer.resize(std::max(buffer.size(), std::min(length, kPiece)));
  for (std::size_t done = 0; done < length; done += kPiece) {
    const std::size_t at = begin + done;
    const std::size_t n = std::min(kPiece, length - done);
    ONEBIT_RETURN_IF_ERROR(array == nullptr
                               ? core.read_weights(at, n, buffer.data())
                               : core.space().read(buffer.data(), array->data() + at, n * sizeof(float)));
    ONEBIT_RETURN_IF_ERROR(writer.write(buffer.data(), n * sizeof(float)));
  }
  return Status();
}

}  // namespace

Status Checkpoint::save(const std::string& directory, bool whole) {
  Core& core = *optimizer_.core_;
  const Layout& layout = core.layout();
  Exchange& exchange = core.exchange();
  ONEBIT_RETURN_IF_ERROR(optimizer_.algorithm_->fetch_numbers());
  auto arrays = optimizer_.algorithm_->arrays();
  arrays.push_back({nullptr, optimizer_.in_common()});  // the weights
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
  header.stamp = collective::SaveStamp::now(
      {optimizer_.run_ != 0 ? optimizer_.run_ : exchange.job(), static_cast<std::uint64_t>(core.step)});
  header.elements = used_elements(layout);
  header.text = text.size();
  header.numbers = static_cast<std::uint32_t>(numbers.size());
  header.arrays = static_cast<std::uint32_t>(arrays.size());
  for (std::size_t i = 0; i < arrays.size(); ++i) header.own_arrays |= arrays[i].shared ? 0U : 1U << i;
  header.residuals = static_cast<std::uint32_t>(exchange.units());
  const std::string path = collective::shard_path(directory, core.options().name, kStateExtension,
                                                  exchange.rank(), exchange.ranks());

  const auto write = [&](ShardWriter& writer) -> Status {
    std::vector<float> buffer;
    const auto write_range = [&](const Array* array, Range range) {
      return for_stretches(layout, range, [&](std::size_t begin, std::size_t length) {
        return write_stretch(core, array, begin, length, buffer, writer);
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
      if (array.shared) ONEBIT_RETURN_IF_ERROR(write_range(array.array, shard));
    }
    ONEBIT_RETURN_IF_ERROR(writer.write_checksum());
    for (const StateArray& array : arrays) {
      if (!array.shared) ONEBIT_RETURN_IF_ERROR(write_range(array.array, all));
    }
    ONEBIT_RETURN_IF_ERROR(for_padding(layout, [&](std::size_t begin, std::size_t length) {
      return write_stretch(core, &core.m(), begin, length, buffer, writer);
    }));
    for (std::size_t unit = 0; unit < exchange.units(); ++unit) {
      ONEBIT_ASSIGN_OR_RETURN(const Residual* const residual, exchange.residual(unit));
      const ResidualHeader head{residual->count, residual->owner_error.size()};
      ONEBIT_RETURN_IF_ERROR(writer.write(&head, sizeof head));
      ONEBIT_RETURN_IF_ERROR(writer.write(residual->worker_error.data(), residual->worker_error.bytes()));
      ONEBIT_RETURN_IF_ERROR(writer.write(residual->owner_error.data(), residual->owner_error.bytes()));
    }
    return writer.write_checksum();
  };
  if (exchange.has_worthless_residuals()) {
    log(LogLevel::kWarn,
        "optimizer '{}': residuals are saved as 0, as the step that was changing them failed",
        core.options().name);
    exchange.clear_residuals();
  }
  return collective::write_shard(directory, path, write).with_context(formatted("save to {}", path));
}

}  // namespace onebit::optimizer
