#include <CLI/CLI.hpp>

#include "tools/verbs.h"

namespace hebb {

void add_inspect_verb(CLI::App& app, int& exit_code) {}

}  // namespace hebb
