// gloo_allreduce: times gloo's float32 sum over TCP, as a baseline for onebit. Built by perf/compare, not by
// CMake.
//
// Place and size from RANK and WORLD_SIZE, rendezvous through files in --store (a fresh folder that all ranks
// see), the device from --interface. Algorithms: `ring` (what PyTorch's gloo backend calls) and `bcube` of
// gloo::allreduce, and the older in-place classes `ring_chunked` and `halving_doubling`; out of place these
// two copy the input first, as their caller would. One thread of its own, and gloo's I/O thread.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <memory>
#include <stdexcept>

#include "measure.h"

namespace {

int number_from_environment(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) throw std::runtime_error(std::string(name) + " is not set");
  return std::atoi(text);
}

/// A timed function for one algorithm. The classes keep their buffers' addresses, so they are made at the
/// first call.
std::function<void(float*, float*, size_t)> make_allreduce(const std::string& name,
                                                           const std::shared_ptr<gloo::Context>& context) {
  if (name == "ring" || name == "bcube") {
    const auto algorithm =
        name == "ring" ? gloo::AllreduceOptions::Algorithm::RING : gloo::AllreduceOptions::Algorithm::BCUBE;
    return [context, algorithm](float* in, float* out, size_t count) {
      gloo::AllreduceOptions options(context);
      options.setAlgorithm(algorithm);
      if (in != out) options.setInput(in, count);
      options.setOutput(out, count);
      options.setReduceFunction(
          [](void* c, const void* a, const void* b, size_t n) { gloo::sum<float>(c, a, b, n); });
      gloo::allreduce(options);
    };
  }
  if (name != "ring_chunked" && name != "halving_doubling") {
    throw std::runtime_error("no algorithm '" + name + "': ring, bcube, ring_chunked, halving_doubling");
  }
  auto made = std::make_shared<std::unique_ptr<gloo::Algorithm>>();
  return [context, name, made](float* in, float* out, size_t count) {
    if (!*made) {
      const std::vector<float*> buffers{out};
      const int length = static_cast<int>(count);
      if (name == "ring_chunked") {
        *made = std::make_unique<gloo::AllreduceRingChunked<float>>(context, buffers, length);
      } else {
        *made = std::make_unique<gloo::AllreduceHalvingDoubling<float>>(context, buffers, length);
      }
    }
    if (in != out) std::memcpy(out, in, count * sizeof(float));
    (*made)->run();
  };
}

void run(const baseline::Arguments& arguments) {
  const int rank = number_from_environment("RANK");
  const int ranks = number_from_environment("WORLD_SIZE");
  gloo::transport::tcp::attr attributes;
  attributes.iface = arguments.interface;
  std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attributes);
  gloo::rendezvous::FileStore store(arguments.store);
  const auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
  context->connectFullMesh(store, device);

  const auto barrier = [&] {
    gloo::BarrierOptions options(context);
    gloo::barrier(options);
  };
  const auto gather = [&](std::vector<double>& mine, size_t count) {
    std::vector<double> all(count * static_cast<size_t>(ranks));
    gloo::AllgatherOptions options(context);
    options.setInput(mine.data(), count);
    options.setOutput(all.data(), all.size());
    gloo::allgather(options);
    return all;
  };
  std::vector<std::string> algorithms = arguments.algorithms;
  if (algorithms.empty()) algorithms = {"ring", "bcube", "ring_chunked", "halving_doubling"};
  for (const baseline::Size& size : arguments.sizes) {
    std::vector<baseline::Tried> tried;
    for (const std::string& name : algorithms) {
      const auto allreduce = make_allreduce(name, context);
      baseline::Times times = baseline::measure(size, rank, ranks, arguments.in_place, barrier, allreduce);
      baseline::reduce_over_ranks(times, ranks, gather);
      tried.push_back({name, times});
    }
    if (rank == 0) baseline::print_json("gloo", size, arguments.in_place, tried);
  }
  barrier();
}

}  // namespace

int main(int argc, char** argv) {
  const baseline::Arguments arguments = baseline::parse_arguments(argc, argv);
  if (arguments.store.empty()) baseline::usage(argv[0], "--store is missing");
  try {
    run(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gloo_allreduce: %s\n", error.what());
    return 1;
  }
  return 0;
}
