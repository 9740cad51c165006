// What contexts, listeners and endpoints of UCX share: UCX's context, the workers, the endpoints by token,
// the transfers under way. The rest is in controlled_core.h.
//
// UCX connects two endpoints of its own by the order in which they were made between the same two workers. So
// that an end of one connection is never joined with the other end of another, which would fail with it, two
// connections never use the same two workers at once: the accepting end chooses a pair that is free. The
// usual single connection to each peer needs one worker, n of them at once some 2 sqrt(n). Threads: those of
// the context.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transport/controlled_core.h"
#include "transport/transport.h"
#include "transport/ucx/ucx_library.h"
#include "transport/ucx/ucx_wire.h"
#include "transport/ucx/ucx_worker.h"

namespace onebit::transport {

class UcxEndpoint;

/// What UCX was asked to do and has not yet done.
struct UcxOperation {
  /// opening, last: credits that the life of the endpoint waits for.
  enum class Kind : std::uint8_t { kSend, kReceive, kOpening, kLast };
  UcxEndpoint* owner = nullptr;  ///< null: it has gone
  const UcxLibrary* library = nullptr;
  Kind kind = Kind::kSend;
  Request* request = nullptr;  ///< null: credits
  std::size_t bytes = 0;
  ucs_status_t status = UCS_INPROGRESS;
  std::array<std::byte, kMostUcxHeader> header{};
};

/// The worker of either end of a connection.
struct UcxPair {
  std::uint8_t own = 0;
  std::uint8_t peer = 0;
};

class UcxCore final : public ControlledCore {
 public:
  static constexpr unsigned kMessageId = 0x1B;

  UcxCore(const Settings& s, const UcxLibrary& library, const UcxWindow& w);
  ~UcxCore() override;
  Status open();

  std::string_view name() const noexcept override { return "ucx"; }
  std::byte mark() const noexcept override { return std::byte{0xC0}; }
  Status check_device(std::size_t device) override;
  Result<std::unique_ptr<Endpoint>> connect(std::size_t device, const Handle& to,
                                            std::span<const std::byte> hello) override;
  Result<std::unique_ptr<ControlledEndpoint>> accepted(std::size_t device,
                                                       std::unique_ptr<Endpoint> over) override;
  Result<std::unique_ptr<Memory>> register_memory(void* data, std::size_t bytes) override;
  bool poll() override;
  Status arm() override;

  const UcxLibrary& library() const noexcept { return library_; }
  Status check(ucs_status_t status, std::string_view what) const;
  /// An error where descriptors might run out in the middle of UCX's making something: it ends the process
  /// then.
  static Status check_descriptors();
  std::uint64_t id() const noexcept { return id_; }
  Result<UcxWorker*> worker(std::uint8_t index);

  /// Workers for a connection that is accepted from this core, the lowest that are free; they stay taken
  /// until free_pair.
  Result<UcxPair> take_pair(std::uint64_t peer);
  void free_pair(std::uint64_t peer, UcxPair pair) noexcept;

  /// Enters an endpoint under a new token.
  std::uint64_t enter(UcxEndpoint& endpoint);
  void forget(std::uint64_t token) noexcept { by_token_.erase(token); }
  UcxEndpoint* find(std::uint64_t token) const noexcept;
  /// Something has happened to this one: it has its turn in the next poll().
  void note_moved(UcxEndpoint& endpoint) noexcept { moved_.push_back(&endpoint); }
  void forget_moved(UcxEndpoint& endpoint) noexcept { std::erase(moved_, &endpoint); }
  bool has_moved() const noexcept { return !moved_.empty(); }
  /// Room in `moved_` for all endpoints.
  void make_room() { moved_.reserve(endpoints.size()); }

  UcxOperation& take_operation();
  void give_back(UcxOperation& operation) noexcept { free_operations_.push_back(&operation); }

  const UcxWindow window;

 private:
  const UcxLibrary& library_;
  const std::uint64_t id_;
  ucp_context_h context_ = nullptr;
  std::vector<std::unique_ptr<UcxWorker>> workers_;  ///< by index; null until first used
  std::set<std::pair<std::uint64_t, std::uint32_t>> pairs_;
  std::unordered_map<std::uint64_t, UcxEndpoint*> by_token_;
  std::vector<UcxEndpoint*> moved_;
  std::deque<UcxOperation> operations_;
  std::vector<UcxOperation*> free_operations_;
  bool counted_ = false;
  bool restless_ = false;  ///< a worker had something while it was armed
};

}  // namespace onebit::transport
