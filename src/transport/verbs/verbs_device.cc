#include "transport/verbs/verbs_device.h"

#include <fcntl.h>

#include <cerrno>

#include "base/log.h"

namespace onebit::transport {
namespace {

Status make_nonblocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags >= 0 && ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0) return Status();
  return Status::system(errno, "fcntl of an RDMA device's events");
}

}  // namespace

Result<std::unique_ptr<OpenPort>> OpenPort::open(const VerbsLibrary& library, const VerbsPort& port,
                                                 const PortAddress& address, bool flushed, Poller& poller,
                                                 DeviceListener& listener) {
  std::unique_ptr<OpenPort> made(new OpenPort(library, port, address, poller, listener));
  int count = 0;
  ibv_device** const devices = library.get_device_list(&count);
  if (devices == nullptr) return Status::system(errno, "ibv_get_device_list");
  for (int i = 0; i < count && !made->context_; ++i) {
    if (port.device != library.get_device_name(devices[i])) continue;
    made->context_ = VerbsDevice(library, library.open_device(devices[i]));
  }
  const int error = errno;
  library.free_device_list(devices);
  if (!made->context_) return Status::system(error, formatted("open the RDMA device {}", port.device));
  made->domain_ = VerbsDomain(library, library.alloc_pd(made->context_.get()));
  if (!made->domain_) return Status::system(errno, formatted("{}: ibv_alloc_pd", port.device));
  made->channel_ = VerbsChannel(library, library.create_comp_channel(made->context_.get()));
  if (!made->channel_) return Status::system(errno, formatted("{}: ibv_create_comp_channel", port.device));
  made->memory_ = std::make_unique<RegisteredMemory>(library, made->domain_.get(), port.device, flushed);
  ONEBIT_RETURN_IF_ERROR(make_nonblocking(made->channel_->fd));
  ONEBIT_RETURN_IF_ERROR(make_nonblocking(made->context_->async_fd));
  ONEBIT_RETURN_IF_ERROR(poller.add(made->channel_->fd, made->completion_events_));
  ONEBIT_RETURN_IF_ERROR(poller.add(made->context_->async_fd, made->device_events_));
  return made;
}

OpenPort::~OpenPort() {
  if (generation_ != UniqueSocket::process_generation()) return;  // the set is the parent's
  if (channel_) poller_.remove(channel_->fd);
  if (context_) poller_.remove(context_->async_fd);
}

/// They only wake: whoever waits polls the queues after it.
void OpenPort::take_completion_events() {
  completion_events_.readable = false;
  ibv_cq* queue = nullptr;
  void* user = nullptr;
  while (library_->get_cq_event(channel_.get(), &queue, &user) == 0) library_->ack_cq_events(queue, 1);
}

void OpenPort::take_device_events() {
  device_events_.readable = false;
  ibv_async_event event{};
  while (library_->get_async_event(context_.get(), &event) == 0) {
    const ibv_event_type type = event.event_type;
    const std::string what = formatted("{}: {}", port_.device, library_->event_type_str(type));
    const ibv_qp* pair = nullptr;
    const ibv_cq* completions = nullptr;
    bool fatal = false;
    switch (type) {
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
        pair = event.element.qp;
        fatal = true;
        break;
      case IBV_EVENT_CQ_ERR:
        completions = event.element.cq;
        fatal = true;
        break;
      case IBV_EVENT_DEVICE_FATAL:
        fatal = true;
        break;
      case IBV_EVENT_PORT_ERR:
        log(LogLevel::kWarn,
            "transport: {} (port {}): its cable or interface is down; connections over it fail "
            "unless it comes back",
            what, event.element.port_num);
        break;
      default:
        log(LogLevel::kInfo, "transport: {}", what);
    }
    library_->ack_async_event(&event);
    if (fatal) listener_.on_device_error(pair, completions, what);
  }
}

}  // namespace onebit::transport
