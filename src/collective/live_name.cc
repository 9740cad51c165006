#include "collective/live_name.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "base/fork.h"

namespace onebit::collective {
namespace {

struct Names {
  ForkMutex mutex{LockLevel::kTable};
  std::multimap<std::string, std::uint64_t> jobs;  // by name
};

Names& names() {
  // Never destroyed: communicators may outlive any static object here.
  static Names* const instance = new Names;
  return *instance;
}
/// Made when the library is loaded, see ForkMutex.
[[maybe_unused]] const Names& g_made_at_load = names();

}  // namespace

LiveName::LiveName(std::string name, std::uint64_t job) : name_(std::move(name)), job_(job) {
  const std::lock_guard lock(names().mutex);
  names().jobs.emplace(name_, job_);
}

LiveName::~LiveName() {
  const std::lock_guard lock(names().mutex);
  const auto [first, last] = names().jobs.equal_range(name_);
  const auto own = std::find_if(first, last, [this](const auto& each) { return each.second == job_; });
  if (own != last) names().jobs.erase(own);
}

bool LiveName::is_shared() const {
  const std::lock_guard lock(names().mutex);
  const auto [first, last] = names().jobs.equal_range(name_);
  return std::any_of(first, last, [this](const auto& each) { return each.second != job_; });
}

}  // namespace onebit::collective
