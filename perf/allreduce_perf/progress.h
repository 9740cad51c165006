// One line on stderr, where that is a terminal, that says what is being measured. It is erased before
// anything else is printed. One thread.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <string>

namespace onebit::perf {

class Progress {
 public:
  /// Only where `wanted` (on rank 0).
  explicit Progress(bool wanted) : shown_(wanted && isatty(STDERR_FILENO) == 1) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(const std::string& text) {
    if (!shown_) return;
    std::fprintf(stderr, "\r\033[K%.79s", text.c_str());
    std::fflush(stderr);
    dirty_ = true;
  }
  void clear() {
    if (!dirty_) return;
    std::fputs("\r\033[K", stderr);
    std::fflush(stderr);
    dirty_ = false;
  }

 private:
  bool shown_;
  bool dirty_ = false;
};

}  // namespace onebit::perf
