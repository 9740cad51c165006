// libonebit-cuda.so, opened when the first communicator is made. Any thread.
#pragma once

#include <string>

#include "base/status.h"
#include "cuda/library.h"

namespace onebit::shim {

/// `path`, or the one beside this library when empty. Opened once, never closed.
Result<const cuda::Library*> cuda_library(const std::string& path);

}  // namespace onebit::shim
