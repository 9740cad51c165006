#include "api/tags.h"

#include <atomic>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>

#include "base/fork.h"

namespace onebit::api {
namespace {

constexpr std::size_t kLongestTag = 255;

struct Buffers {
  ForkMutex mutex{LockLevel::kTable};
  struct Range {
    std::size_t bytes;
    std::string tag;
  };
  std::map<std::uintptr_t, Range> ranges;  // by start
  std::atomic<bool> any{false};  // lets calls of programs without registered buffers pass the lock by
};
Buffers& buffers() {
  // Never destroyed: threads of the host process may still call when static objects are torn down.
  static Buffers* const instance = new Buffers;
  return *instance;
}
/// Made when the library is loaded, see ForkMutex.
[[maybe_unused]] const Buffers& g_made_at_load = buffers();

struct Scope {
  std::string tag;
  std::size_t calls = 0;
};
std::vector<Scope>& scopes() {
  thread_local std::vector<Scope> stack;
  return stack;
}

Status check_tag(std::string_view tag) {
  if (!tag.empty() && tag.size() <= kLongestTag) return Status();
  return Status::error(Code::kInvalidArgument, "a tag must have 1 to {} bytes, this has {}", kLongestTag,
                       tag.size());
}

}  // namespace

Status tag_buffer(const void* base, std::size_t bytes, std::string_view tag) {
  ONEBIT_RETURN_IF_ERROR(check_tag(tag));
  const auto start = reinterpret_cast<std::uintptr_t>(base);
  if (bytes == 0 || start + bytes < start) return Status(Code::kInvalidArgument, "bytes must be above 0");
  Buffers& all = buffers();
  const std::lock_guard lock(all.mutex);
  const auto next = all.ranges.lower_bound(start);
  const bool hits_next = next != all.ranges.end() && next->first < start + bytes;
  const bool hits_previous =
      next != all.ranges.begin() && std::prev(next)->first + std::prev(next)->second.bytes > start;
  if (hits_next || hits_previous) {
    const auto& other = hits_next ? next->second : std::prev(next)->second;
    return Status::error(Code::kInvalidUsage, "the range of tag '{}' overlaps that of tag '{}'", tag,
                         other.tag);
  }
  all.ranges.emplace(start, Buffers::Range{bytes, std::string(tag)});
  all.any.store(true, std::memory_order_release);
  return Status();
}

Status untag_buffer(const void* base) {
  Buffers& all = buffers();
  const std::lock_guard lock(all.mutex);
  if (all.ranges.erase(reinterpret_cast<std::uintptr_t>(base)) == 0) {
    return Status(Code::kInvalidUsage, "no range that starts at this address is tagged");
  }
  all.any.store(!all.ranges.empty(), std::memory_order_release);
  return Status();
}

Status begin_scope(std::string_view tag) {
  ONEBIT_RETURN_IF_ERROR(check_tag(tag));
  scopes().push_back({std::string(tag), 0});
  return Status();
}

Status end_scope() {
  if (scopes().empty())
    return Status(Code::kInvalidUsage, "onebitScopeEnd without onebitScopeBegin in this thread");
  scopes().pop_back();
  return Status();
}

std::string resolve_tag(std::string_view tag, const void* buffer) {
  if (!tag.empty()) return std::string(tag);
  if (!scopes().empty()) {
    const Scope& scope = scopes().back();
    return scope.calls == 0 ? scope.tag : formatted("{}#{}", scope.tag, scope.calls);
  }
  Buffers& all = buffers();
  if (!all.any.load(std::memory_order_acquire)) return {};
  const std::lock_guard lock(all.mutex);
  const auto address = reinterpret_cast<std::uintptr_t>(buffer);
  auto at = all.ranges.upper_bound(address);
  if (at == all.ranges.begin()) return {};
  --at;
  const std::size_t offset = address - at->first;
  if (offset >= at->second.bytes) return {};
  return offset == 0 ? at->second.tag : formatted("{}+{}", at->second.tag, offset);
}

void count_call(std::string_view tag) {
  if (tag.empty() && !scopes().empty()) ++scopes().back().calls;
}

}  // namespace onebit::api
