#include "transport/ucx/ucx_core.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "bootstrap/handshake.h"
#include "transport/ucx/ucx_endpoint.h"

namespace onebit::transport {
namespace {

/// Of one core; more than that many connections at once need.
constexpr std::uint8_t kMostWorkers = 64;

/// What a context or a worker may open: a few for each network interface.
constexpr std::size_t kDescriptors = 24;

/// UCX registers what it needs and keeps it itself.
class UcxMemory final : public Memory {};

std::uint64_t random_number() {
  const bootstrap::Key random = bootstrap::random_key();
  std::uint64_t number = 0;
  std::memcpy(&number, random.data(), sizeof number);
  return number;
}

std::uint32_t number_of(UcxPair pair) noexcept {
  return pair.own * 256U + pair.peer;
}

/// With it UCX's shared memory says that it can end a connection without the peer, as all of ours must.
constexpr const char* kSharedMemoryEnds = "MM_ERROR_HANDLING";
constexpr std::array<const char*, 3> kSaidByTheJob{"UCX_MM_ERROR_HANDLING", "UCX_POSIX_ERROR_HANDLING",
                                                   "UCX_SYSV_ERROR_HANDLING"};
constexpr std::array<std::string_view, 6> kSharedMemory{"all", "shm", "sm", "mm", "posix", "sysv"};

/// Whether the job leaves shared memory in use, and this to us: of settings without a use UCX warns.
bool may_set_up_shared_memory() {
  for (const char* const name : kSaidByTheJob) {
    if (std::getenv(name) != nullptr) return false;
  }
  const char* const chosen = std::getenv("UCX_TLS");
  std::string_view names = chosen != nullptr ? chosen : "all";
  const bool all_but = names.starts_with('^');
  if (all_but) names.remove_prefix(1);
  bool named = false;
  while (!names.empty()) {
    const auto end = std::min(names.find(','), names.size());
    const std::string_view name = names.substr(0, end);
    named |= std::find(kSharedMemory.begin(), kSharedMemory.end(), name) != kSharedMemory.end();
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return named != all_but;
}

/// The cores of this process, and which process that is.
std::atomic<unsigned> g_cores{0};
std::atomic<std::uint32_t> g_process{0};

}  // namespace

UcxCore::UcxCore(const Settings& s, const UcxLibrary& library, const UcxWindow& w)
    : ControlledCore(s), window(w), library_(library), id_(random_number()), workers_(kMostWorkers) {}

Status UcxCore::check_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return Status();
  std::error_code error;
  std::size_t open = 0;
  for (std::filesystem::directory_iterator at("/proc/self/fd", error), end; !error && at != end;
       at.increment(error)) {
    ++open;
  }
  if (error ? error.value() != EMFILE : open + kDescriptors <= limit.rlim_cur) return Status();
  return Status::system(EMFILE, formatted("UCX may need {} descriptors more", kDescriptors));
}

Status UcxCore::open() {
  // UCX's own thread, which its connections need, is not in the child, and UCX does not see that.
  if (g_cores > 0 && g_process != UniqueSocket::process_generation()) {
    return Status(
        Code::kInvalidUsage,
        "UCX was in use in the process that forked this one: it works in one of the two only; start the "
        "other with exec, or set ONEBIT_TRANSPORT=tcp");
  }
  ONEBIT_RETURN_IF_ERROR(check_descriptors());
  g_process = UniqueSocket::process_generation();
  ++g_cores;
  counted_ = true;
  ucp_config_t* config = nullptr;
  ONEBIT_RETURN_IF_ERROR(check(library_.config_read(nullptr, nullptr, &config), "ucp_config_read"));
  // A version without this setting needs none.
  if (may_set_up_shared_memory()) static_cast<void>(library_.config_modify(config, kSharedMemoryEnds, "y"));
  ucp_params_t parameters{};
  parameters.field_mask = UCP_PARAM_FIELD_FEATURES;
  parameters.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  const ucs_status_t status =
      library_.init_version(UCP_API_MAJOR, UCP_API_MINOR, &parameters, config, &context_);
  library_.config_release(config);
  return check(status, "ucp_init");
}

UcxCore::~UcxCore() {
  workers_.clear();
  if (counted_ && !is_inherited()) --g_cores;
  if (context_ != nullptr && !is_inherited()) library_.cleanup(context_);
}

Status UcxCore::check(ucs_status_t status, std::string_view what) const {
  if (status == UCS_OK) return Status();
  return Status::error(Code::kSystemError, "UCX: {}: {}", what, library_.status_string(status));
}

Status UcxCore::check_device(std::size_t device) {
  if (device == 0) return Status();
  return Status::error(Code::kInvalidArgument, "device {} of the UCX transport, which has 1", device);
}

Result<std::unique_ptr<Endpoint>> UcxCore::connect(std::size_t /*device*/, const Handle& to,
                                                   std::span<const std::byte> hello) {
  const auto self = std::static_pointer_cast<UcxCore>(shared_from_this());
  ONEBIT_ASSIGN_OR_RETURN(auto made, UcxEndpoint::connect(self, to, hello));
  return std::unique_ptr<Endpoint>(std::move(made));
}

Result<std::unique_ptr<ControlledEndpoint>> UcxCore::accepted(std::size_t /*device*/,
                                                              std::unique_ptr<Endpoint> over) {
  const auto self = std::static_pointer_cast<UcxCore>(shared_from_this());
  ONEBIT_ASSIGN_OR_RETURN(auto made, UcxEndpoint::accepted(self, std::move(over)));
  return std::unique_ptr<ControlledEndpoint>(std::move(made));
}

Result<std::unique_ptr<Memory>> UcxCore::register_memory(void* /*data*/, std::size_t /*bytes*/) {
  return std::unique_ptr<Memory>(std::make_unique<UcxMemory>());
}

bool UcxCore::poll() {
  bool any = std::exchange(restless_, false);
  for (const auto& worker : workers_) {
    if (worker != nullptr) any |= worker->progress();
  }
  while (!moved_.empty()) {
    any = true;
    UcxEndpoint& endpoint = *moved_.back();
    moved_.pop_back();
    endpoint.advance();
  }
  return any;
}

Status UcxCore::arm() {
  for (const auto& worker : workers_) {
    if (worker == nullptr) continue;
    ONEBIT_ASSIGN_OR_RETURN(const bool armed, worker->arm());
    if (!armed) restless_ = true;
  }
  return Status();
}

Result<UcxWorker*> UcxCore::worker(std::uint8_t index) {
  if (index >= kMostWorkers) {
    return Status::error(Code::kDataError, "worker {} of the UCX transport, which has {}", index,
                         kMostWorkers);
  }
  if (workers_[index] == nullptr) {
    ONEBIT_ASSIGN_OR_RETURN(workers_[index], UcxWorker::open(*this, context_));
  }
  return workers_[index].get();
}

/// Two cores that accept from each other at once must not take the same pair: one of them takes from workers
/// with even numbers, the other from those with odd ones. To connect to itself, a core uses two of its own.
Result<UcxPair> UcxCore::take_pair(std::uint64_t peer) {
  const std::uint8_t first = id_ < peer ? 1 : 0;
  for (std::uint8_t high = first; high < kMostWorkers; high = static_cast<std::uint8_t>(high + 2)) {
    for (std::uint8_t low = first; low <= high; low = static_cast<std::uint8_t>(low + 2)) {
      for (const UcxPair pair : {UcxPair{high, low}, UcxPair{low, high}}) {
        if (peer == id_ && pair.own <= pair.peer) continue;
        if (pairs_.emplace(peer, number_of(pair)).second) return pair;
      }
    }
  }
  return Status(Code::kSystemError, "too many connections between two contexts of the UCX transport");
}

void UcxCore::free_pair(std::uint64_t peer, UcxPair pair) noexcept {
  pairs_.erase({peer, number_of(pair)});
}

std::uint64_t UcxCore::enter(UcxEndpoint& endpoint) {
  for (;;) {
    const std::uint64_t token = random_number();
    if (by_token_.emplace(token, &endpoint).second) return token;
  }
}

UcxEndpoint* UcxCore::find(std::uint64_t token) const noexcept {
  const auto at = by_token_.find(token);
  return at == by_token_.end() ? nullptr : at->second;
}

UcxOperation& UcxCore::take_operation() {
  if (free_operations_.empty()) {
    free_operations_.reserve(operations_.size() + 1);
    return operations_.emplace_back();
  }
  UcxOperation& operation = *free_operations_.back();
  free_operations_.pop_back();
  operation = UcxOperation();
  return operation;
}

}  // namespace onebit::transport
