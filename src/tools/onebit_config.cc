// onebit_config: shows the settings that a communicator would use now, or docs/settings.md.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/settings.h"
#include "collective/communicator.h"

int main(int argc, char** argv) {
  CLI::App app{"Shows onebit's settings as the environment sets them, with where each value comes from."};
  bool markdown = false;
  app.add_flag("--markdown", markdown, "print docs/settings.md instead");
  CLI11_PARSE(app, argc, argv);
  if (markdown) {
    std::fputs(onebit::settings_markdown().c_str(), stdout);
    return 0;
  }
  const auto settings = onebit::Settings::from_environment();
  const onebit::Status status =
      settings.ok() ? onebit::collective::Communicator::check_settings(*settings) : settings.status();
  if (!status.ok()) {
    fmt::print(stderr, "onebit_config: {}\n", status.message());
    return 1;
  }
  std::fputs(onebit::print_settings(*settings).c_str(), stdout);
  return 0;
}
