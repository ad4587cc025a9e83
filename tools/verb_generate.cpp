#include <algorithm>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>

#include "core/files.h"
#include "data/text/utf8.h"
#include "eval/generate.h"
#include "eval/layer_overrides.h"
#include "tools/command_line.h"
#include "tools/options.h"
#include "tools/verbs.h"

namespace hebb {
namespace {

struct Options {
  std::string checkpoint, prompt, prompt_file, tokenizer;
  DeviceOptions device;
  GenerateOptions generate;
  std::map<std::string, std::vector<std::string>> overrides;  // texts by option
  bool ignore_eos = false, echo = true, stats = false;
};

volatile std::sig_atomic_t interrupted = 0;

std::string read_prompt(const Options& o, bool has_prompt) {
  const std::string text = has_prompt               ? o.prompt
                           : !o.prompt_file.empty() ? without_byte_order_mark(read_file(o.prompt_file))
                                                    : std::string(std::istreambuf_iterator<char>(std::cin), {});
  require_utf8(has_prompt ? "--prompt" : o.prompt_file.empty() ? "standard input" : o.prompt_file, text);
  return text;
}

int run_generate(Options o, bool has_prompt) {
  ModelSource source = read_model_source(o.checkpoint);
  if (source.weights.empty()) {
    throw CheckpointError(o.checkpoint, "no weights to generate with", "a configuration", "a checkpoint or run folder");
  }
  const auto tokenizer = find_tokenizer(source, o.tokenizer);
  const fs::path weights = source.weights;
  ScoringModel session(std::move(source), weights, set_up_compute(o.device));
  o.generate.stop_at_eos = !o.ignore_eos;
  apply(parse_overrides(o.overrides), session.model());
  const std::string prompt = read_prompt(o, has_prompt);
  std::signal(SIGINT, [](int) { interrupted = 1; });
  const auto write = [](std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
    return interrupted == 0 && std::ferror(stdout) == 0;
  };
  if (o.echo) { write(prompt); }
  const Generated g = generate(session, tokenizer, prompt, 0, o.generate, write);
  write("\n");
  if (o.stats) {
    std::fprintf(stderr, "%lld prompt tokens in %.3f s, %lld new tokens in %.3f s (%.1f tokens/s)%s\n",
                 static_cast<long long>(g.prompt_tokens), g.prefill_seconds, static_cast<long long>(g.new_tokens),
                 g.decode_seconds, static_cast<double>(g.new_tokens) / std::max(g.decode_seconds, 1e-9),
                 g.ended ? ", ended by EOS" : "");
  }
  return interrupted != 0 ? 130 : 0;
}

}  // namespace

void add_generate_verb(Command program) {
  Command verb = program.verb("generate", "Continues a prompt with a trained model");
  const auto o = std::make_shared<Options>();
  Sampling& sampling = o->generate.sampling;
  verb.option("CHECKPOINT", o->checkpoint, "A checkpoint folder, or a run folder (its latest checkpoint)").required();
  const Option prompt = verb.option("--prompt", o->prompt, "The text to continue (default: standard input)");
  verb.option("--prompt-file", o->prompt_file, "A file with the text to continue").excludes(prompt);
  verb.option("--max-new-tokens", o->generate.max_new_tokens, "Length limit [tokens]").at_least(0);
  verb.option("--temperature", sampling.temperature, "Softmax temperature; 0 = greedy").at_least(0);
  verb.option("--top-k", sampling.top_k, "Draw among the k most likely; 0 = all [tokens]").at_least(0);
  verb.option("--top-p", sampling.top_p, "Draw among the most likely with this total probability").between(0, 1);
  verb.option("--seed", o->generate.seed, "Seed of the draws");
  verb.option("--tokenizer", o->tokenizer,
              "SentencePiece .model file, tokenizer.json or \"bytes\" (default: the run's)");
  for (const OverridableType& to : overridable_types()) {
    for (const OverrideGroup::Option& option : to.group->options) {
      verb.option(option.name, o->overrides[option.name], option.help).type_name(option.value);
    }
  }
  verb.flag("--ignore-eos", o->ignore_eos, "Go on after an end-of-text token");
  verb.flag("--echo,!--no-echo", o->echo, "Print the prompt too (default: on)");
  verb.flag("--stats", o->stats, "Print times to standard error");
  add_device_options(verb, o->device);
  verb.runs([o, prompt] { return run_generate(*o, prompt.is_given()); });
}

}  // namespace hebb
