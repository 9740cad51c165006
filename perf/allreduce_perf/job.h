// This process as a rank of its job: the communicator, with every call checked.
//
// A failed call throws onebit::Error. One thread.
#pragma once

#include <cstddef>
#include <cstring>
#include <onebit/onebit.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "inputs.h"

namespace onebit::perf {

class Job {
 public:
  /// Joins the job that the launcher's environment describes; `settings` as in onebitConfig_t.
  explicit Job(const std::string& settings)
      : communicator_(nullptr, settings.c_str()), rank_(communicator_.rank()), ranks_(communicator_.size()) {}

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  Shape shape(DataType type, ReduceOp op) const { return {type, op, rank_, ranks_}; }

  /// Without a tag the call is exact.
  void all_reduce(DataType type, ReduceOp op, const void* send, void* receive, std::size_t count,
                  const char* tag) {
    check(onebitAllReduce(send, receive, count, code(type), code(op), tag, communicator_.get(), nullptr));
  }
  /// How a call would go, and why: "1bit: ..." or "exact: ...".
  std::string explain(DataType type, ReduceOp op, const void* send, std::size_t count, const char* tag) {
    std::string text(512, '\0');
    check(
        onebitExplain(send, count, code(type), code(op), tag, communicator_.get(), text.data(), text.size()));
    return text.c_str();
  }
  void barrier() { check(onebitBarrier(communicator_.get())); }
  /// Drops the residuals of `tag`. To be called by every rank between the same calls.
  void reset(const char* tag) { check(onebitResidualReset(communicator_.get(), tag)); }
  onebitStats_t stats() {
    onebitStats_t stats{};
    stats.size = sizeof stats;
    check(onebitCommGetStats(communicator_.get(), &stats));
    return stats;
  }
  /// `mine` of every rank, by rank.
  template <typename T>
  std::vector<T> gather(const T& mine) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> all(static_cast<std::size_t>(ranks_));
    check(onebitAllGather(&mine, all.data(), sizeof(T), onebitUint8, communicator_.get(), nullptr));
    return all;
  }

 private:
  void check(onebitResult_t result) const { onebit::check(result, communicator_.get()); }
  static onebitDataType_t code(DataType type) { return static_cast<onebitDataType_t>(type); }
  static onebitRedOp_t code(ReduceOp op) { return static_cast<onebitRedOp_t>(op); }

  onebit::Communicator communicator_;
  int rank_;
  int ranks_;
};

}  // namespace onebit::perf
