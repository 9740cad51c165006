#include "transport/verbs/verbs_flush.h"

#include <array>
#include <cerrno>

#include "transport/verbs/verbs_pair.h"

namespace onebit::transport {

Result<std::unique_ptr<VerbsFlush>> VerbsFlush::make(const std::vector<OpenPort*>& ports,
                                                     const Settings& settings) {
  std::unique_ptr<VerbsFlush> made(new VerbsFlush);
  ONEBIT_ASSIGN_OR_RETURN(made->landed_, VerbsPages::make(1, "a byte to flush into"));
  for (OpenPort* const port : ports) ONEBIT_RETURN_IF_ERROR(made->add(*port, settings));
  return made;
}

Status VerbsFlush::add(OpenPort& port, const Settings& settings) {
  const VerbsLibrary& library = port.library();
  Way& way = ways_.emplace_back();
  way.port = &port;
  ONEBIT_ASSIGN_OR_RETURN(way.landing, port.memory().hold(landed_.data(), 1, true));
  way.completions =
      VerbsCompletions(library, library.create_cq(port.context(), 1, nullptr, port.channel(), 0));
  if (!way.completions) return Status::system(errno, fmt::format("{}: ibv_create_cq", port.port().name()));
  ibv_qp_init_attr attributes{};
  attributes.qp_type = IBV_QPT_RC;
  attributes.send_cq = attributes.recv_cq = way.completions.get();
  attributes.sq_sig_all = 1;
  attributes.cap.max_send_wr = attributes.cap.max_recv_wr = 1;
  attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
  way.pair = VerbsPair(library, library.create_qp(port.domain(), &attributes));
  if (!way.pair) return Status::system(errno, fmt::format("{}: ibv_create_qp", port.port().name()));
  ONEBIT_RETURN_IF_ERROR(prepare_pair(port, way.pair.get(), settings));
  return connect_pair(port, way.pair.get(), settings, 0, {place_of(port), way.pair->qp_num, 0});
}

Status VerbsFlush::begin(const void* data, PortHolds memory) {
  memory_ = std::move(memory);
  for (std::size_t i = 0; i < ways_.size(); ++i) {
    ibv_sge piece{reinterpret_cast<std::uintptr_t>(landed_.data()), 1, ways_[i].landing.local_key()};
    ibv_send_wr work{};
    work.sg_list = &piece;
    work.num_sge = 1;
    work.opcode = IBV_WR_RDMA_READ;
    work.wr.rdma.remote_addr = reinterpret_cast<std::uintptr_t>(data);
    work.wr.rdma.rkey = memory_[i].remote_key();
    ibv_send_wr* refused = nullptr;
    if (const int error = ibv_post_send(ways_[i].pair.get(), &work, &refused); error != 0) {
      return Status::system(error, fmt::format("{}: post a flush", ways_[i].port->port().name()));
    }
    ++under_way_;
  }
  return Status();
}

Result<bool> VerbsFlush::poll() {
  for (Way& way : ways_) {
    ibv_wc completion{};
    const int count = ibv_poll_cq(way.completions.get(), 1, &completion);
    if (count == 0) continue;
    if (count < 0) return Status(Code::kSystemError, "ibv_poll_cq failed");
    if (completion.status != IBV_WC_SUCCESS) {
      return Status::error(Code::kSystemError, "a flush through {}: {}", way.port->port().name(),
                           way.port->library().wc_status_str(completion.status));
    }
    --under_way_;
  }
  if (busy()) return false;
  memory_ = {};
  return true;
}

Status VerbsFlush::arm() noexcept {
  for (const Way& way : ways_) {
    if (const int error = ibv_req_notify_cq(way.completions.get(), 0); error != 0) {
      return Status::system(error, "ibv_req_notify_cq");
    }
  }
  return Status();
}

}  // namespace onebit::transport
