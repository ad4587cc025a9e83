// hebb inspect PATH
#include <memory>
#include <string>

#include "core/names.h"
#include "tools/command_line.h"
#include "tools/console.h"
#include "tools/describe.h"
#include "tools/verbs.h"

namespace hebb {

void add_inspect_verb(Command program) {
  Command verb = program.verb(
      "inspect", "Shows what a safetensors file, shard, index, data set, tokenizer, checkpoint or run folder holds");
  const auto path = std::make_shared<std::string>();
  const auto statistics = std::make_shared<bool>(false);
  verb.option("PATH", *path, "File, folder or quoted pattern of shards").required().type_name("PATH");
  verb.flag("--stats", *statistics, "Mean, deviation, extremes and non-finite values of every tensor");
  verb.runs([=] { print_text(printable(describe_path(*path, *statistics), true)); });
}

}  // namespace hebb
