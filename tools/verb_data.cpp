#include <CLI/CLI.hpp>

#include "tools/verbs.h"

namespace hebb {

void add_data_verb(CLI::App& app, int& exit_code) {
  CLI::App& data = *app.add_subcommand("data", "Turns text into token shards and checks them");
  data.require_subcommand(1);
}

}  // namespace hebb
