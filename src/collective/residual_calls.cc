// What a communicator does with its residuals outside of a reduction: save, load on all ranks or none, reset.

#include "collective/call_guard.h"
#include "collective/communicator.h"
#include "collective/residual_file.h"

namespace onebit::collective {

Status Communicator::save_residuals(const std::string& directory) {
  const CallGuard guard(*this, true);
  ONEBIT_RETURN_IF_ERROR(guard.status());
  if (live_name_ && live_name_->is_shared()) {
    return Status::error(
        Code::kInvalidUsage,
        "another communicator of this process is named '{}', too, and would save to the same "
        "files: give each a name of its own (onebitConfig_t)",
        name_);
  }
  return collective::save_residuals(residuals_, name_, directory, {job_, operation_});
}

Status Communicator::load_residuals(const std::string& directory) {
  const CallGuard guard(*this);
  ONEBIT_RETURN_IF_ERROR(guard.status());
  ResidualStore fresh(rank_, ranks());
  const auto own = collective::load_residuals(fresh, name_, directory);

  struct Word {
    std::uint64_t loaded = 0;
    SaveMoment moment;
  };
  const Word mine{own.ok() ? 1U : 0U, own.ok() ? *own : SaveMoment()};
  std::vector<Word> all(ranks());
  ONEBIT_RETURN_IF_ERROR(gather_in_call(&mine, all.data(), sizeof mine));
  ONEBIT_RETURN_IF_ERROR(own.status());
  for (std::size_t rank = 0; rank < ranks(); ++rank) {
    if (all[rank].loaded == 0) {
      return Status::error(
          Code::kDataError,
          "rank {} at {} cannot load its residuals (its error says why), so no rank loads any", rank,
          where_[rank]);
    }
    if (all[rank].moment == mine.moment) continue;
    return Status::error(
        Code::kDataError,
        "{} holds residuals of different moments: of rank {} (at {}) after call {}{}, of rank {} "
        "after call {}; no rank loads any",
        directory, rank, where_[rank], all[rank].moment.call,
        all[rank].moment.job == mine.moment.job ? "" : " of another job", rank_, mine.moment.call);
  }
  residuals_ = std::move(fresh);
  return Status();
}

Status Communicator::reset_residuals(std::string_view tag) {
  const CallGuard guard(*this);
  ONEBIT_RETURN_IF_ERROR(guard.status());
  residuals_.reset(tag);
  return Status();
}

Result<std::size_t> Communicator::residual_memory(std::string_view tag) {
  const CallGuard guard(*this, true);
  ONEBIT_RETURN_IF_ERROR(guard.status());
  return residuals_.memory(tag);
}

Result<ResidualSquares> Communicator::residual_squares(std::string_view tag) {
  const CallGuard guard(*this, true);
  ONEBIT_RETURN_IF_ERROR(guard.status());
  return residuals_.squares(tag);
}

}  // namespace onebit::collective
