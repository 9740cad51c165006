#include "settings.h"

#include <cstdlib>

#include "cuda/open_library.h"

namespace onebit::shim {
namespace {

Result<ShimSettings> read() {
  ShimSettings read{};
  ONEBIT_ASSIGN_OR_RETURN(read.settings, Settings::from_environment());
  set_log_level(read.settings.debug);
  warn_of_unknown_variables();
  ONEBIT_ASSIGN_OR_RETURN(read.rules, collective::Rules::parse(read.settings.compress));
  ONEBIT_ASSIGN_OR_RETURN(read.library, cuda::open_library(read.settings.cuda_library));
  read.library->set_log_level(static_cast<int>(read.settings.debug));
  return read;
}

}  // namespace

bool is_active() {
  static const bool active = [] {
    const char* const rules = std::getenv("ONEBIT_COMPRESS");
    return rules != nullptr && *rules != '\0';
  }();
  return active;
}

const Result<ShimSettings>& shim_settings() {
  // Never destroyed: threads of the job may still call when static objects are torn down.
  static const auto* const settings = new Result<ShimSettings>(read());
  return *settings;
}

}  // namespace onebit::shim
