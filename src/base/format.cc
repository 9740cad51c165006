#include "base/format.h"

#include <fmt/format.h>

#include <iterator>

namespace onebit {

void append_formatted_from(std::string& text, fmt::string_view format, fmt::format_args arguments) {
  fmt::vformat_to(std::back_inserter(text), format, arguments);
}

}  // namespace onebit
