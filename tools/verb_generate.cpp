#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>

#include "core/files.h"
#include "core/utf8.h"
#include "data/text/jsonl.h"
#include "eval/generate.h"
#include "eval/stop_text.h"
#include "eval/thresholds.h"
#include "tools/command_line.h"
#include "tools/options.h"
#include "tools/verbs.h"

namespace hebb {
namespace {

struct Options {
  std::string checkpoint, prompt, prompt_file, prompts, tokenizer;
  std::vector<std::string> stops;
  int64_t samples = 1;
  uint64_t prompt_index = 0;  // of the first prompt
  DeviceOptions device;
  GenerateOptions generate;
  std::vector<std::string> taus, selects;
  bool ignore_eos = false, echo = true, stats = false, json = false;
};

volatile std::sig_atomic_t interrupted = 0;

/// False when the reader is gone or the user has interrupted.
bool write(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  return interrupted == 0 && std::ferror(stdout) == 0;
}

/// Standard input without the newline that ends its last line: `echo` writes one.
std::string read_standard_input() {
  if (isatty(STDIN_FILENO) != 0) { std::fputs("prompt, ended by Ctrl-D:\n", stderr); }
  std::string text(std::istreambuf_iterator<char>(std::cin), {});
  if (text.ends_with('\n')) { text.pop_back(); }
  if (text.ends_with('\r')) { text.pop_back(); }
  return text;
}

/// The prompts of a file, one a line: the line itself, or "prompt" of a JSONL line. Blank lines are passed over.
std::vector<std::string> read_prompts(const std::string& file) {
  TextInputOptions input;
  input.inputs = {file};
  input.split = "\n";
  RawReader reader(input);
  std::vector<std::string> prompts;
  RawDocument line;
  for (int64_t number = 1; reader.next(line); ++number) {
    const std::string where = fmt::format("{}:{:d}", file, line.is_jsonl ? static_cast<int64_t>(line.line) : number);
    if (!line.failure.empty()) { throw DataError(where, line.failure); }
    require_utf8(where, line.bytes);
    if (line.bytes.ends_with('\r')) { line.bytes.pop_back(); }
    if (line.is_jsonl) {
      const JsonlText text = jsonl_text(line.bytes, "prompt", false);
      if (!text.is_good) { throw DataError(where, text.problem, text.found, text.expected); }
      prompts.push_back(text.text);
    } else if (!line.bytes.empty()) {
      prompts.push_back(line.bytes);
    }
  }
  if (prompts.empty()) { throw DataError(file, "no prompt", "an empty file", "one prompt a line"); }
  return prompts;
}

std::vector<std::string> read_prompts(const Options& o, bool has_prompt) {
  if (!o.prompts.empty()) { return read_prompts(o.prompts); }
  const std::string text = has_prompt               ? o.prompt
                           : !o.prompt_file.empty() ? without_byte_order_mark(read_file(o.prompt_file))
                                                    : read_standard_input();
  require_utf8(has_prompt ? "--prompt" : o.prompt_file.empty() ? "standard input" : o.prompt_file, text);
  return {text};
}

Json json_line(const std::string& prompt, uint64_t index, const StopText& text, const Generated& g, uint64_t seed) {
  const char* reason = text.is_cut() ? "stop" : g.ended ? "eos" : interrupted != 0 ? "interrupted" : "length";
  return Json::object({{"prompt", prompt},
                       {"prompt_index", index},
                       {"text", text.text()},
                       {"prompt_tokens", g.prompt_tokens},
                       {"tokens", Json::array({g.tokens.begin(), g.tokens.end()})},
                       {"stop_reason", reason},
                       {"seed", seed}});
}

/// One continuation, written as it grows, or as a line of JSON. False to stop.
bool sample(ScoringModel& model, const std::shared_ptr<const Tokenizer>& tokenizer, const std::string& prompt,
            uint64_t index, const Options& o, uint64_t seed) {
  GenerateOptions options = o.generate;
  options.seed = seed;
  StopText text(o.stops);
  size_t shown = 0;
  const auto show = [&](size_t end) {
    const bool goes_on = o.json || write(std::string_view(text.text()).substr(shown, end - shown));
    shown = end;
    return goes_on && interrupted == 0;
  };
  if (o.echo && !o.json) { write(prompt); }
  const Generated g = generate(model, tokenizer, prompt, index, options, [&](std::string_view more) {
    const bool goes_on = text.push(more);
    return show(text.settled()) && goes_on;
  });
  show(text.text().size());
  if (o.stats) {
    std::fprintf(stderr, "%lld prompt tokens in %.3f s, %lld new tokens in %.3f s (%.1f tokens/s)%s\n",
                 static_cast<long long>(g.prompt_tokens), g.prefill_seconds, static_cast<long long>(g.new_tokens),
                 g.decode_seconds, static_cast<double>(g.new_tokens) / std::max(g.decode_seconds, 1e-9),
                 text.is_cut() ? ", ended by --stop"
                 : g.ended     ? ", ended by EOS"
                               : "");
  }
  return write(o.json ? json_line(prompt, index, text, g, seed).dump() + "\n" : "\n");
}

int run_generate(Options o, bool has_prompt) {
  for (std::string& stop : o.stops) {
    stop = unescape(stop);
    require_utf8("--stop", stop);
    if (stop.empty()) { throw ConfigError("--stop", "an empty text", "at least one character"); }
  }
  const Compute compute = set_up_compute(o.device);
  std::shared_ptr<const Tokenizer> tokenizer;
  const auto loaded = with_latest(o.checkpoint, [&](ModelSource source) {
    if (source.weights.empty()) {
      throw CheckpointError(o.checkpoint, "no weights to generate with", "a configuration",
                            "a checkpoint or run folder");
    }
    tokenizer = find_tokenizer(source, o.tokenizer);
    const fs::path weights = source.weights;
    return std::make_unique<ScoringModel>(std::move(source), weights, compute);
  });
  ScoringModel& model = *loaded;
  o.generate.stop_at_eos = !o.ignore_eos;
  apply(parse_thresholds(o.taus, o.selects), model.model());
  const std::vector<std::string> prompts = read_prompts(o, has_prompt);
  print_fallback(o.device, compute);
  std::signal(SIGINT, [](int) { interrupted = 1; });
  const bool is_one = prompts.size() == 1 && o.samples == 1;
  bool goes_on = true;
  for (size_t p = 0; p < prompts.size() && goes_on; ++p) {
    const uint64_t index = o.prompt_index + p;
    for (int64_t i = 0; i < o.samples && goes_on; ++i) {
      const uint64_t seed = o.generate.seed + static_cast<uint64_t>(i);  // each sample is that of its seed alone
      if (!is_one && !o.json) { write(fmt::format("==> prompt {:d}, seed {:d} <==\n", index, seed)); }
      goes_on = sample(model, tokenizer, prompts[p], index, o, seed);
    }
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
  const Option file = verb.option("--prompt-file", o->prompt_file, "A file with the text to continue").excludes(prompt);
  verb.option("--prompts", o->prompts, "A file with several: one a line, or JSONL with \"prompt\"")
      .excludes(prompt)
      .excludes(file);
  verb.option("--num-samples", o->samples, "Continuations of each prompt, with the seeds S, S + 1, ...").at_least(1);
  verb.option("--max-new-tokens", o->generate.max_new_tokens, "Length limit [tokens]").at_least(0);
  verb.option("--stop", o->stops, "End before this text; several times for several texts; \\n, \\t, ... are escapes")
      .one_each();
  verb.option("--temperature", sampling.temperature, "Softmax temperature; 0 = greedy").at_least(0);
  verb.option("--top-k", sampling.top_k, "Draw among the k most likely; 0 = all [tokens]").at_least(0);
  verb.option("--top-p", sampling.top_p, "Draw among the most likely with this total probability").between(0, 1);
  verb.option("--seed", o->generate.seed, "Seed of the draws");
  verb.option("--prompt-index", o->prompt_index, "Number of the first prompt, which its draws depend on");
  verb.option("--tokenizer", o->tokenizer,
              "SentencePiece .model file, tokenizer.json or \"bytes\" (default: the run's)");
  verb.option("--tau", o->taus, "Threshold of all ham layers, or BLOCK=X of one, in units of the score").type_name("X");
  verb.option("--select", o->selects, "Select all or no tokens in ham layers: all, none, BLOCK=all, BLOCK=none")
      .type_name("MODE");
  verb.flag("--ignore-eos", o->ignore_eos, "Go on after an end-of-text token");
  verb.flag("--echo,!--no-echo", o->echo, "Print the prompt too (default: on)");
  verb.flag("--json", o->json, "A line of JSON per sample: prompt, its index, text, tokens, stop_reason, seed");
  verb.flag("--stats", o->stats, "Print times to standard error");
  add_device_options(verb, o->device);
  add_graphs_option(verb, o->device);
  verb.footer(
      "hebb generate runs/quickstart --prompt 'In the beginning' --max-new-tokens 100 --temperature 0.8\n"
      "hebb generate runs/quickstart --prompts questions.jsonl --num-samples 3 --json > answers.jsonl\n"
      "Page: docs/verbs/generate.md");
  verb.runs([o, prompt] { return run_generate(*o, prompt.is_given()); });
}

}  // namespace hebb
