// libibverbs, opened at run time: the functions that the transport calls, and owners of what they make.
//
// Nothing here is linked against it: a machine without it uses another transport. What the header has inline
// (posting, polling, asking for events) goes through the device's own table and is called directly. A forked
// child shares the device files with its parent, so there an owner lets go without a call: the parent's
// objects live on. Threads: the table any, owners one at a time.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <utility>

#include "base/status.h"
#include "base/unique_socket.h"

namespace onebit::transport {

struct VerbsLibrary {
  ibv_device** (*get_device_list)(int* count);
  void (*free_device_list)(ibv_device** list);
  const char* (*get_device_name)(ibv_device* device);
  ibv_context* (*open_device)(ibv_device* device);
  int (*close_device)(ibv_context* context);
  int (*query_device)(ibv_context* context, ibv_device_attr* attributes);
  int (*query_port)(ibv_context* context, std::uint8_t port, ibv_port_attr* attributes);
  int (*query_gid)(ibv_context* context, std::uint8_t port, int index, ibv_gid* gid);
  ibv_pd* (*alloc_pd)(ibv_context* context);
  int (*dealloc_pd)(ibv_pd* domain);
  ibv_mr* (*reg_mr)(ibv_pd* domain, void* data, std::size_t bytes, int access);
  /// Null where the library is older than it.
  ibv_mr* (*reg_dmabuf_mr)(ibv_pd* domain, std::uint64_t offset, std::size_t bytes, std::uint64_t address,
                           int fd, int access);
  int (*dereg_mr)(ibv_mr* region);
  ibv_comp_channel* (*create_comp_channel)(ibv_context* context);
  int (*destroy_comp_channel)(ibv_comp_channel* channel);
  ibv_cq* (*create_cq)(ibv_context* context, int entries, void* user, ibv_comp_channel* channel, int vector);
  int (*destroy_cq)(ibv_cq* queue);
  int (*get_cq_event)(ibv_comp_channel* channel, ibv_cq** queue, void** user);
  void (*ack_cq_events)(ibv_cq* queue, unsigned count);
  ibv_qp* (*create_qp)(ibv_pd* domain, ibv_qp_init_attr* attributes);
  int (*modify_qp)(ibv_qp* pair, ibv_qp_attr* attributes, int mask);
  int (*destroy_qp)(ibv_qp* pair);
  int (*get_async_event)(ibv_context* context, ibv_async_event* event);
  void (*ack_async_event)(ibv_async_event* event);
  int (*fork_init)();
  const char* (*wc_status_str)(ibv_wc_status status);
  const char* (*event_type_str)(ibv_event_type type);
};

/// Opens a library of this name. An error says which it was, and what to install or set.
Result<VerbsLibrary> open_verbs_library(const char* name);
/// libibverbs.so.1, opened by the first call and prepared for fork(); the same answer to each further one.
Result<const VerbsLibrary*> verbs_library();

/// Owns what a function of the library has made, and ends it by another.
template <typename T, int (*VerbsLibrary::*end)(T*)>
class VerbsOwner {
 public:
  VerbsOwner() noexcept = default;
  VerbsOwner(const VerbsLibrary& library, T* made) noexcept : library_(&library), made_(made) {}
  VerbsOwner(VerbsOwner&& other) noexcept
      : library_(other.library_),
        made_(std::exchange(other.made_, nullptr)),
        generation_(other.generation_) {}
  VerbsOwner& operator=(VerbsOwner&& other) noexcept {
    if (this == &other) return *this;
    reset();
    library_ = other.library_;
    made_ = std::exchange(other.made_, nullptr);
    generation_ = other.generation_;
    return *this;
  }
  ~VerbsOwner() { reset(); }

  T* get() const noexcept { return made_; }
  T* operator->() const noexcept { return made_; }
  explicit operator bool() const noexcept { return made_ != nullptr; }
  void reset() noexcept {
    T* const made = std::exchange(made_, nullptr);
    if (made != nullptr && generation_ == UniqueSocket::process_generation()) (library_->*end)(made);
  }

 private:
  const VerbsLibrary* library_ = nullptr;
  T* made_ = nullptr;
  std::uint32_t generation_ = UniqueSocket::process_generation();
};
using VerbsDevice = VerbsOwner<ibv_context, &VerbsLibrary::close_device>;
using VerbsDomain = VerbsOwner<ibv_pd, &VerbsLibrary::dealloc_pd>;
using VerbsRegion = VerbsOwner<ibv_mr, &VerbsLibrary::dereg_mr>;
using VerbsChannel = VerbsOwner<ibv_comp_channel, &VerbsLibrary::destroy_comp_channel>;
using VerbsCompletions = VerbsOwner<ibv_cq, &VerbsLibrary::destroy_cq>;
using VerbsPair = VerbsOwner<ibv_qp, &VerbsLibrary::destroy_qp>;

}  // namespace onebit::transport
