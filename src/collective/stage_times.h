// Where the time of a schedule goes: computing by stage, and waiting with nothing to compute.
//
// Plain values, of the thread that moves data. Computing is added up over threads, so that it may be more
// than the call took; waiting is of the call: its messages are on their way, or other ranks are late.
#pragma once

#include <chrono>

namespace onebit::collective {

struct StageTimes {
  std::chrono::nanoseconds call{0};
  std::chrono::nanoseconds encode{0};
  std::chrono::nanoseconds average{0};
  std::chrono::nanoseconds decode{0};
  std::chrono::nanoseconds waiting{0};

  StageTimes& operator+=(const StageTimes& other) {
    call += other.call;
    encode += other.encode;
    average += other.average;
    decode += other.decode;
    waiting += other.waiting;
    return *this;
  }
};

}  // namespace onebit::collective
