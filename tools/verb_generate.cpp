#include <CLI/CLI.hpp>

#include <csignal>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>

#include "core/files.h"
#include "core/parallel.h"
#include "tools/options.h"
#include "tools/verbs.h"
#include "train/generate.h"
#include "train/threshold_overrides.h"

namespace hebb {
namespace {

struct Options {
  std::string checkpoint, prompt, prompt_file, tokenizer;
  std::string precision, device = "auto";
  GenerateOptions generate;
  std::vector<std::string> taus, modes;
  bool ignore_eos = false, echo = true, stats = false;
  int threads = 0;
};

volatile std::sig_atomic_t interrupted = 0;

std::string read_prompt(const Options& o, bool has_prompt) {
  const std::string text = has_prompt               ? o.prompt
                           : !o.prompt_file.empty() ? read_file(o.prompt_file)
                                                    : std::string(std::istreambuf_iterator<char>(std::cin), {});
  require_utf8(has_prompt ? "--prompt" : o.prompt_file.empty() ? "standard input" : o.prompt_file, text);
  return text;
}

void run_generate(Options o, bool has_prompt, int& exit_code) {
  set_threads(o.threads);
  ModelSource source = read_model_source(o.checkpoint);
  if (source.weights.empty()) {
    throw CheckpointError(o.checkpoint, "no weights to generate with", "a configuration", "a checkpoint or run folder");
  }
  const auto tokenizer = find_tokenizer(source, o.tokenizer);
  const fs::path weights = source.weights;
  Session session(std::move(source), weights, choose_compute(o.device, o.precision, "--"));
  o.generate.stop_at_eos = !o.ignore_eos;
  apply(parse_threshold_overrides(o.taus, o.modes), session.model());
  const std::string prompt = read_prompt(o, has_prompt);
  std::signal(SIGINT, [](int) { interrupted = 1; });
  const auto write = [](std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
    return interrupted == 0 && std::ferror(stdout) == 0;
  };
  if (o.echo) {
    write(prompt);
  }
  const Generated g = generate(session, tokenizer, prompt, 0, o.generate, write);
  write("\n");
  if (o.stats) {
    std::fprintf(stderr, "%lld prompt tokens in %.3f s, %lld new tokens in %.3f s (%.1f tokens/s)%s\n",
                 static_cast<long long>(g.prompt_tokens), g.prefill_seconds, static_cast<long long>(g.new_tokens),
                 g.decode_seconds, static_cast<double>(g.new_tokens) / std::max(g.decode_seconds, 1e-9),
                 g.ended ? ", ended by EOS" : "");
  }
  exit_code = interrupted != 0 ? 130 : 0;
}

}  // namespace

void add_generate_verb(CLI::App& app, int& exit_code) {
  CLI::App& verb = *app.add_subcommand("generate", "Continues a prompt with a trained model");
  const auto o = std::make_shared<Options>();
  verb.add_option("CHECKPOINT", o->checkpoint, "A checkpoint folder, or a run folder (its latest checkpoint)")->required();
  CLI::Option* prompt = verb.add_option("--prompt", o->prompt, "The text to continue (default: standard input)");
  verb.add_option("--prompt-file", o->prompt_file, "A file with the text to continue")->excludes(prompt);
  at_least(verb.add_option("--max-new-tokens", o->generate.max_new_tokens, "Length limit [tokens]"), 0)->capture_default_str();
  at_least(verb.add_option("--temperature", o->generate.sampling.temperature, "Softmax temperature; 0 = greedy"), 0)->capture_default_str();
  at_least(verb.add_option("--top-k", o->generate.sampling.top_k, "Draw among the k most likely; 0 = all [tokens]"), 0)->capture_default_str();
  between(verb.add_option("--top-p", o->generate.sampling.top_p, "Draw among the most likely with this total probability"), 0, 1)->capture_default_str();
  accept_unsigned(verb.add_option("--seed", o->generate.seed, "Seed of the draws")->capture_default_str());
  verb.add_option("--tokenizer", o->tokenizer, "SentencePiece .model file or \"bytes\" (default: the run's)");
  verb.add_option("--tau", o->taus, "Threshold of all ham layers, or BLOCK=X of one, in units of the score")->type_name("X");
  verb.add_option("--select", o->modes, "Select all or no tokens in ham layers: all, none, BLOCK=all, BLOCK=none")->type_name("MODE");
  verb.add_flag("--ignore-eos", o->ignore_eos, "Go on after an end-of-text token");
  verb.add_flag("--echo,!--no-echo", o->echo, "Print the prompt too (default: on)");
  verb.add_flag("--stats", o->stats, "Print times to standard error");
  one_of(verb.add_option("--device", o->device, "Where to compute"), {"auto", "cpu", "cuda"})->capture_default_str();
  one_of(verb.add_option("--precision", o->precision, "Number format (default: fp32 on the CPU, bf16 on a GPU)"), {"fp32", "bf16", "fp64"});
  at_least(verb.add_option("--threads", o->threads, "Threads (0 = all cores that the process may use)"), 0)->capture_default_str();
  verb.callback([o, prompt, &exit_code] { run_generate(*o, prompt->count() > 0, exit_code); });
}

}  // namespace hebb
