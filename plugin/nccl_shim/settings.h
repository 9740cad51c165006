// The shim's settings, read once a process. Any thread.
#pragma once

#include "base/settings.h"
#include "collective/rules.h"
#include "cuda/library.h"

namespace onebit::shim {

struct ShimSettings {
  Settings settings;
  collective::Rules rules;
  const cuda::Library* library;

  /// Whether one of our transports carries messages instead of NCCL.
  bool has_own_transport() const { return settings.transport != "auto" && settings.transport != "nccl"; }
};

/// Whether ONEBIT_COMPRESS is set: without it every call passes through.
bool is_active();
/// The settings, and libonebit-cuda.so. An error says which variable is wrong, or why the library cannot be
/// opened.
const Result<ShimSettings>& shim_settings();

}  // namespace onebit::shim
