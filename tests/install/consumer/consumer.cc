// Sums the ranks' numbers 1, 2 ... over the ranks, through onebit.hpp.
#include <cstdio>
#include <onebit/onebit.hpp>

int main() {
  try {
    onebit::Communicator communicator;
    double value = communicator.rank() + 1;
    communicator.all_reduce(&value, &value, 1);
    const double expected = communicator.size() * (communicator.size() + 1) / 2.0;
    std::printf("rank %d of %d: sum %g\n", communicator.rank(), communicator.size(), value);
    return value == expected ? 0 : 1;
  } catch (const onebit::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
