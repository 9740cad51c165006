// What the baseline programs share: arguments, data with a known sum, statistics, the JSON line. Header only.
//
// Method, the same for every library: out of place unless --in-place; the iterations follow each other
// without a barrier, as nccl-tests runs them; each rank times each iteration. An iteration's time is the
// largest over the ranks. "time_us" is the median over iterations, "time_us_min" the smallest, "time_us_mean"
// the whole loop over its iterations (nccl-tests' figure). The result of the last iteration is checked, every
// element. One thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace baseline {

/// A size of the list: BYTES:WARMUP:ITERATIONS.
struct Size {
  size_t bytes = 0;
  int warmup = 0;
  int iterations = 0;
};

struct Arguments {
  std::vector<Size> sizes;
  std::vector<std::string> algorithms;  ///< those to try; empty: all
  std::string interface = "eth0";
  std::string store;  ///< folder for the rendezvous, seen by all ranks
  bool in_place = false;
};

[[noreturn]] inline void usage(const char* program, const char* problem) {
  std::fprintf(stderr,
               "%s: %s\n"
               "usage: %s [--in-place] [--interface NAME] [--store DIR] [--algorithms A,B...] "
               "BYTES:WARMUP:ITERATIONS...\n",
               program, problem, program);
  std::exit(2);
}

inline Arguments parse_arguments(int argc, char** argv) {
  Arguments parsed;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 >= argc) usage(argv[0], ("no value after " + word).c_str());
      return argv[++i];
    };
    if (word == "--in-place") {
      parsed.in_place = true;
    } else if (word == "--interface") {
      parsed.interface = value();
    } else if (word == "--store") {
      parsed.store = value();
    } else if (word == "--algorithms") {
      std::string list = value() + ",";
      for (size_t end; (end = list.find(',')) != std::string::npos; list.erase(0, end + 1)) {
        parsed.algorithms.push_back(list.substr(0, end));
      }
    } else {
      Size size;
      char rest = 0;
      const int fields =
          std::sscanf(word.c_str(), "%zu:%d:%d%c", &size.bytes, &size.warmup, &size.iterations, &rest);
      if (fields != 3 || size.bytes % 4 != 0 || size.bytes == 0 || size.warmup < 0 || size.iterations < 1) {
        usage(argv[0], ("'" + word + "' is not BYTES:WARMUP:ITERATIONS with BYTES a multiple of 4").c_str());
      }
      parsed.sizes.push_back(size);
    }
  }
  if (parsed.sizes.empty()) usage(argv[0], "no sizes");
  return parsed;
}

/// Element i of rank r: small whole numbers, so that a float32 sum in any order is exact.
inline float input_value(size_t i, int rank) {
  return static_cast<float>(static_cast<int>((i + static_cast<size_t>(rank) * 7) % 61) - 30);
}

inline void fill(std::vector<float>& data, int rank) {
  for (size_t i = 0; i < data.size(); ++i) data[i] = input_value(i, rank);
}

inline size_t count_wrong(const std::vector<float>& data, int ranks) {
  size_t wrong = 0;
  for (size_t i = 0; i < data.size(); ++i) {
    float sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += input_value(i, rank);
    if (data[i] != sum) ++wrong;
  }
  return wrong;
}

/// Times of one algorithm at one size, in microseconds; after reduce_over_ranks equal on all ranks.
struct Times {
  std::vector<double> iterations;
  double loop = 0;  ///< the whole loop
  double wrong = 0;

  double median() const {
    std::vector<double> sorted = iterations;
    std::sort(sorted.begin(), sorted.end());
    const size_t middle = sorted.size() / 2;
    return sorted.size() % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  }
  double min() const { return *std::min_element(iterations.begin(), iterations.end()); }
  double mean() const { return loop / static_cast<double>(iterations.size()); }
};

/// Runs `allreduce(in, out)` as `size` says. In place, `in` and `out` are the same array, and the sums grow
/// from iteration to iteration (floats add equally fast whatever they hold), so one more, untimed run from
/// fresh data is checked.
inline Times measure(const Size& size, int rank, int ranks, bool in_place,
                     const std::function<void()>& barrier,
                     const std::function<void(float*, float*, size_t)>& allreduce) {
  using Clock = std::chrono::steady_clock;
  const auto microseconds = [](Clock::duration d) {
    return std::chrono::duration<double, std::micro>(d).count();
  };
  const size_t count = size.bytes / sizeof(float);
  std::vector<float> output(count);
  std::vector<float> separate(in_place ? 0 : count);
  std::vector<float>& input = in_place ? output : separate;
  fill(input, rank);
  for (int i = 0; i < size.warmup; ++i) allreduce(input.data(), output.data(), count);
  Times times;
  times.iterations.reserve(static_cast<size_t>(size.iterations));
  barrier();
  const Clock::time_point start = Clock::now();
  Clock::time_point last = start;
  for (int i = 0; i < size.iterations; ++i) {
    allreduce(input.data(), output.data(), count);
    const Clock::time_point now = Clock::now();
    times.iterations.push_back(microseconds(now - last));
    last = now;
  }
  times.loop = microseconds(last - start);
  if (in_place) {
    fill(input, rank);
    barrier();
    allreduce(input.data(), output.data(), count);
  }
  times.wrong = static_cast<double>(count_wrong(output, ranks));
  barrier();
  return times;
}

/// Makes the times the largest over the ranks. `gather(mine, count)` returns the `count` numbers of each
/// rank, rank by rank.
inline void reduce_over_ranks(
    Times& times, int ranks, const std::function<std::vector<double>(std::vector<double>&, size_t)>& gather) {
  std::vector<double> mine = times.iterations;
  mine.push_back(times.loop);
  mine.push_back(times.wrong);
  const size_t columns = mine.size();
  const std::vector<double> all = gather(mine, columns);
  times.wrong = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const double* row = all.data() + static_cast<size_t>(rank) * columns;
    for (size_t i = 0; i < times.iterations.size(); ++i) {
      times.iterations[i] = std::max(times.iterations[i], row[i]);
    }
    times.loop = std::max(times.loop, row[columns - 2]);
    times.wrong += row[columns - 1];
  }
}

/// One algorithm that was tried.
struct Tried {
  std::string algorithm;
  Times times;
};

/// One line: the algorithm with the smallest mean, and the means of all that were tried.
inline void print_json(const char* library, const Size& size, bool in_place,
                       const std::vector<Tried>& tried) {
  const Tried& best = *std::min_element(tried.begin(), tried.end(), [](const Tried& a, const Tried& b) {
    return a.times.mean() < b.times.mean();
  });
  double wrong = 0;
  std::string means;
  for (const Tried& one : tried) {
    wrong += one.times.wrong;
    char text[128];
    std::snprintf(text, sizeof text, "%s\"%s\": %.1f", means.empty() ? "" : ", ", one.algorithm.c_str(),
                  one.times.mean());
    means += text;
  }
  std::printf(
      "{\"library\": \"%s\", \"bytes\": %zu, \"algorithm\": \"%s\", \"in_place\": %s, \"time_us\": %.1f, "
      "\"time_us_min\": %.1f, \"time_us_mean\": %.1f, \"iterations\": %d, \"wrong\": %.0f, \"tried\": "
      "{%s}}\n",
      library, size.bytes, best.algorithm.c_str(), in_place ? "true" : "false", best.times.median(),
      best.times.min(), best.times.mean(), size.iterations, wrong, means.c_str());
  std::fflush(stdout);
}

}  // namespace baseline
