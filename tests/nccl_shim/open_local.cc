// open_local MODULE...: runs jobs that are opened with RTLD_LOCAL, each in a thread of its own.
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

int main(int argc, char** argv) {
  using Job = int (*)();
  std::vector<Job> jobs;
  for (int i = 1; i < argc; ++i) {
    void* const module = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
    if (module == nullptr) {
      std::fprintf(stderr, "open_local: %s\n", dlerror());
      return 1;
    }
    jobs.push_back(reinterpret_cast<Job>(dlsym(module, "onebit_local_job")));
  }
  std::atomic<int> status = jobs.empty() ? 1 : 0;
  std::vector<std::thread> threads;
  for (const Job job : jobs) {
    threads.emplace_back([job, &status] {
      if (const int result = job(); result != 0) status = result;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return status;
}
