// open_local MODULE: runs a job that is opened with RTLD_LOCAL.
#include <dlfcn.h>

#include <cstdio>

int main(int argc, char** argv) {
  void* const module = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (module == nullptr) {
    std::fprintf(stderr, "open_local: %s\n", argc == 2 ? dlerror() : "one argument");
    return 1;
  }
  return reinterpret_cast<int (*)()>(dlsym(module, "onebit_local_job"))();
}
