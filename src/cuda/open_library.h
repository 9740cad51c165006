// libonebit-cuda.so, opened when it is needed first. Any thread.
#pragma once

#include <string>

#include "base/status.h"
#include "cuda/library.h"

namespace onebit::cuda {

/// `path`, or the one beside this library when empty. Opened once, never closed.
Result<const Library*> open_library(const std::string& path);

}  // namespace onebit::cuda
