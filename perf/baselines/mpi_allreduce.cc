// mpi_allreduce: times MPI_Allreduce of float32, as a baseline for onebit. Built by perf/compare, not by
// CMake.
//
// Started by mpirun, which also chooses transport and algorithm (perf/compare says how); --store and
// --interface are taken and not used, so that all baselines have the same command line. In place means
// MPI_IN_PLACE. One thread.
// The old C++ bindings do not compile without warnings.
#define OMPI_SKIP_MPICXX
#include <mpi.h>

#include "measure.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const baseline::Arguments arguments = baseline::parse_arguments(argc, argv);
  int rank = 0;
  int ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const auto barrier = [] { MPI_Barrier(MPI_COMM_WORLD); };
  const auto allreduce = [](float* in, float* out, size_t count) {
    const void* input = in == out ? MPI_IN_PLACE : static_cast<const void*>(in);
    MPI_Allreduce(input, out, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  };
  const auto gather = [&](std::vector<double>& mine, size_t count) {
    std::vector<double> all(count * static_cast<size_t>(ranks));
    const int length = static_cast<int>(count);
    MPI_Allgather(mine.data(), length, MPI_DOUBLE, all.data(), length, MPI_DOUBLE, MPI_COMM_WORLD);
    return all;
  };
  const std::string name = arguments.algorithms.empty() ? "default" : arguments.algorithms.front();
  for (const baseline::Size& size : arguments.sizes) {
    baseline::Times times = baseline::measure(size, rank, ranks, arguments.in_place, barrier, allreduce);
    baseline::reduce_over_ranks(times, ranks, gather);
    if (rank == 0) baseline::print_json("openmpi", size, arguments.in_place, {{name, times}});
  }
  MPI_Finalize();
  return 0;
}
