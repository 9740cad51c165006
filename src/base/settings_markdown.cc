// docs/settings.md, made from the table of settings.

#include "base/settings.h"

namespace onebit {

std::string settings_markdown() {
  const Settings defaults;
  std::string text =
      "# Settings\n\n"
      "Made from the table in `src/base/settings_table.cc` by `onebit_config --markdown`; a test keeps the "
      "two equal.\n\n"
      "All settings are environment variables, read when a communicator is created. A value that cannot be "
      "parsed is\n"
      "an error that names the variable, the value and what is accepted; words are read in any "
      "case.\n"
      "Where NCCL has a variable for the same thing, it is used when ours is unset. A variable that begins "
      "with ONEBIT_ and is none of these is warned "
      "of.\n\n"
      "| variable | default | accepted | meaning |\n|---|---|---|---|\n";
  for (const SettingRow& row : setting_rows()) {
    const std::string shown = row.value.show(defaults);
    const std::string alias = row.nccl_name.empty() ? "" : formatted(" (or `{}`)", row.nccl_name);
    text += formatted("| `{}`{} | {} | {} | {} |\n", row.name, alias,
                      shown.empty() ? "unset" : formatted("`{}`", shown), row.type, row.meaning);
  }
  text +=
      "\n## The rules of ONEBIT_COMPRESS\n\n"
      "Rules are separated by `;` and tried in order; the first whose conditions all hold decides. A rule is "
      "a list of\n"
      "conditions separated by `,`; with `!` before it, it sends the call the exact way. No rule matches: "
      "exact.\n\n"
      "| condition | holds when |\n|---|---|\n"
      "| `all` | always |\n"
      "| `none` | never |\n"
      "| `size>=BYTES`, `size<BYTES` | the buffer's size compares so; K, M, G are powers of 1024 |\n"
      "| `ranks>=N`, `ranks<N` | the communicator's size compares so |\n"
      "| `type=T\\|U` | the element type is one of these: float, half, bfloat16 |\n"
      "| `op=sum\\|avg` | the reduction is one of these |\n"
      "| `comm=GLOB` | the communicator's name matches |\n"
      "| `tag=GLOB` | the tag matches |\n\n"
      "Example: `ONEBIT_COMPRESS='!tag=*norm*;size>=1M,type=float,comm=dp*'`. Of calls through "
      "onebit.h, only tagged ones are ever compressed.\n"
      "The rules must be the same on all ranks; set-up compares them.\n";
  return text;
}

}  // namespace onebit
