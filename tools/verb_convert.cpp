// hebb convert SOURCE TARGET
#include <cstdio>
#include <memory>
#include <string>

#include "inspect/convert/convert.h"
#include "tools/command_line.h"
#include "tools/verbs.h"

namespace hebb {

void add_convert_verb(Command program) {
  Command verb = program.verb(
      "convert", "Converts checkpoints to and from the formats of transformers and flash-linear-attention");
  struct Options {
    std::string source, target;
    ConvertOptions convert;
  };
  const auto o = std::make_shared<Options>();
  verb.option("SOURCE", o->source,
              "A foreign folder (config.json with \"model_type\"), or a checkpoint or run folder of hebb")
      .required()
      .type_name("PATH");
  verb.option("TARGET", o->target, "The folder to write; new or empty").required().type_name("PATH");
  verb.option("--dtype", o->convert.dtype, "Number format of the tensors (default: as in the source; F16 becomes fp32)")
      .one_of({"fp32", "bf16"});
  verb.option(
          "--to", o->convert.to,
          "What a checkpoint of hebb becomes: hf, a class of transformers or flash-linear-attention; pytorch, hebb's "
          "own tensors with a PyTorch file that builds every model")
      .one_of({"hf", "pytorch"});
  verb.option("--class", o->convert.model_class, "The class to export to (default: the first that holds the model)")
      .one_of(export_classes());
  verb.option("--shard-size", o->convert.shard_bytes,
              "Largest file of weights in a folder for transformers; more become shards with an index [bytes]")
      .at_least(1);
  verb.footer(
      "hebb convert runs/quickstart quickstart-hf --dtype bf16\nhebb convert runs/quickstart quickstart-pytorch --to "
      "pytorch\nhebb convert Qwen3-0.6B qwen3\n"
      "Page: docs/verbs/convert.md");
  verb.runs([=] {
    const auto progress = stderr_progress();
    ConvertOptions options = o->convert;
    options.progress = progress.get();
    const std::string text = convert_checkpoint(o->source, o->target, options);
    std::fwrite(text.data(), 1, text.size(), stdout);
  });
}

}  // namespace hebb
