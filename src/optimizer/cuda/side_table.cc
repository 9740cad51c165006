#include "optimizer/cuda/side_table.h"

#include <exception>

#include "optimizer/cuda/device_side.h"

namespace onebit::optimizer::cuda {
namespace {

/// What body() comes to; an exception, for want of memory, is an internal error.
template <typename Body>
Report reported(Body body) noexcept {
  try {
    return Report(body());
  } catch (const std::exception& exception) {
    return Report(Status(Code::kInternalError, exception.what()));
  }
}

Report create(const SideSettings& settings, DeviceSide** made) {
  return reported([&]() -> Status {
    ONEBIT_ASSIGN_OR_RETURN(auto side, DeviceSide::create(settings));
    *made = side.release();
    return Status();
  });
}

Report current_device(int* device) {
  const cudaError_t error = cudaGetDevice(device);
  if (error == cudaSuccess) return Report();
  return Report(Status::error(Code::kSystemError, "cudaGetDevice: {}", cudaGetErrorString(error)));
}

}  // namespace

const SideTable kSideTable = {
    .create = create,
    .destroy = [](DeviceSide* side) { delete side; },
    .current_device = current_device,

    .allocate = [](DeviceSide* side, std::size_t bytes,
                   void** memory) { return reported([&] { return side->allocate(bytes, memory); }); },
    .release = [](DeviceSide* side, void* memory) { side->release(memory); },
    .zero = [](DeviceSide* side, void* to, std::size_t bytes) { side->zero(to, bytes); },
    .copy = [](DeviceSide* side, void* to, const void* from,
               std::size_t bytes) { side->copy(to, from, bytes); },
    .read = [](DeviceSide* side, void* to, const void* from,
               std::size_t bytes) { return reported([&] { return side->read(to, from, bytes); }); },
    .write = [](DeviceSide* side, void* to, const void* from,
                std::size_t bytes) { return reported([&] { return side->write(to, from, bytes); }); },
    .check = [](DeviceSide* side, const void* address,
                std::size_t alignment) { return reported([&] { return side->check(address, alignment); }); },

    .make_queue = [](DeviceSide* side, const std::size_t* counts,
                     std::size_t jobs) { return reported([&] {
                                           return side->make_queue({counts, jobs});
                                         }); },
    .run =
        [](DeviceSide* side, Pass pass, const Job* jobs, std::size_t count) {
          side->run(pass, {jobs, count});
        },
    .fetch = [](DeviceSide* side, Job* jobs,
                std::size_t count) { return reported([&] {
                                       return side->fetch({jobs, count});
                                     }); },
    .agree =
        [](DeviceSide* side, Job* jobs, std::size_t count, Agreement* agreement) {
          return reported([&] { return side->agree({jobs, count}, *agreement); });
        },
    .choose_steps =
        [](DeviceSide* side, const LambRule* rules, const LambNumbers* numbers, std::size_t count) {
          side->choose_steps({rules, count}, {numbers, count});
        },
    .fetch_numbers =
        [](DeviceSide* side, LambNumbers* numbers, std::size_t count) {
          return reported([&] { return side->fetch_numbers({numbers, count}); });
        },

    .mean = [](DeviceSide* side, float* data,
               std::size_t count) { return reported([&] { return side->mean(data, count); }); },
    .compressed_mean =
        [](DeviceSide* side, float* data, std::size_t unit) {
          return reported([&] { return side->compressed_mean(data, unit); });
        },
    .complete = [](DeviceSide* side) { return reported([&] { return side->complete(); }); },
    .all_gather =
        [](DeviceSide* side, const void* send, void* receive, std::size_t bytes) {
          return reported([&] { return side->all_gather(send, receive, bytes); });
        },
    .usable = [](const DeviceSide* side) { return Report(side->usable()); },

    .add_unit = [](DeviceSide* side, std::size_t count,
                   bool whole) { return reported([&] { return side->add_unit(count, whole); }); },
    .read_residual =
        [](DeviceSide* side, std::size_t unit, float* worker, float* owner) {
          return reported([&] { return side->read_residual(unit, worker, owner); });
        },
    .write_residual =
        [](DeviceSide* side, std::size_t unit, const float* worker, const float* owner) {
          return reported([&] { return side->write_residual(unit, worker, owner); });
        },
    .clear_residuals = [](DeviceSide* side) { side->clear_residuals(); },
    .has_worthless_residuals = [](const DeviceSide* side) { return side->has_worthless_residuals(); },
    .residual_bytes = [](const DeviceSide* side) { return side->residual_bytes(); },
};

}  // namespace onebit::optimizer::cuda
