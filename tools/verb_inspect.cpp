// hebb inspect PATH
#include <CLI/CLI.hpp>

#include <cstdio>
#include <memory>
#include <string>

#include "tools/describe.h"
#include "tools/verbs.h"

namespace hebb {

void add_inspect_verb(CLI::App& app, int& exit_code) {
  static_cast<void>(exit_code);
  CLI::App& inspect = *app.add_subcommand(
      "inspect", "Shows what a safetensors file, shard, index, data set, tokenizer, checkpoint or run folder holds");
  const auto path = std::make_shared<std::string>();
  const auto statistics = std::make_shared<bool>(false);
  inspect.add_option("PATH", *path, "File, folder or quoted pattern of shards")->required()->type_name("PATH");
  inspect.add_flag("--stats", *statistics, "Mean, deviation, extremes and non-finite values of every tensor");
  inspect.callback([=] {
    const std::string text = describe_path(*path, *statistics);
    std::fwrite(text.data(), 1, text.size(), stdout);
  });
}

}  // namespace hebb
