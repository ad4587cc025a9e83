// hebb data encode | inspect | verify | synth | synth-task
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "core/parallel.h"
#include "core/progress.h"
#include "data/shards/describe.h"
#include "data/shards/ingest.h"
#include "data/tasks/synth_corpus.h"
#include "data/tasks/synthetic_tasks.h"
#include "tools/command_line.h"
#include "tools/line_output.h"
#include "tools/options.h"
#include "tools/verbs.h"

namespace hebb {
namespace {

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

/// --val-tokens: a number of tokens or, below 1, a share of all.
void read_val_tokens(const std::string& text, EncodeOptions& options) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const bool is_number = !text.empty() && *end == '\0';
  constexpr double kMost = 9007199254740992;  // 2^53
  if (is_number && value > 0 && value < 1) {
    options.val_share = value;
  } else if (is_number && value >= 1 && value <= kMost && value == std::floor(value)) {
    options.val_tokens = static_cast<uint64_t>(value);
  } else {
    throw ConfigError("--val-tokens", text, "a number of tokens (an integer >= 1) or a share (above 0, below 1)");
  }
}

struct EncodeArguments {
  EncodeOptions options;
  std::string tokenizer;
  bool json = false;
};

void run_encode(EncodeArguments& arguments) {
  const TokenizerConfig named = tokenizer_named(arguments.tokenizer);
  arguments.options.tokenizer.type = named.type;
  arguments.options.tokenizer.file = named.file;
  set_threads(arguments.options.workers);
  const auto progress = stderr_progress();
  const EncodeReport report = encode_corpus(arguments.options, *progress);
  print(arguments.json ? report.json().dump() + "\n" : report.text());
}

void add_encode(Command data) {
  Command verb = data.verb("encode", "Encodes text into token shards (a data set folder)");
  const auto arguments = std::make_shared<EncodeArguments>();
  EncodeOptions& options = arguments->options;
  add_text_input_options(verb, options.input);
  verb.option("-t,--tokenizer", arguments->tokenizer,
              "\"bytes\", a SentencePiece .model file (BPE or unigram) or a tokenizer.json")
      .required()
      .type_name("NAME");
  verb.option("-o,--out", options.out, "Folder of the data set; created if it does not exist")
      .required()
      .type_name("DIR");
  verb.flag("--add-bos,!--no-add-bos", options.tokenizer.add_bos, "Put BOS in front of every document (default: no)");
  verb.flag("--add-eos,!--no-add-eos", options.tokenizer.add_eos, "Put EOS after every document (default: yes)");
  verb.option("--shard-tokens", options.shard_tokens, "Size of a shard; a document never straddles two [tokens]");
  verb.option("--val-fraction", options.val_fraction, "Share of the documents for validation, drawn at random")
      .type_name("NUMBER");
  verb.option("--val-documents", options.val_documents, "Or: the last so many documents for validation");
  verb.option(
          "--val-tokens", [&options](const std::string& text) { read_val_tokens(text, options); },
          "Or: the last so many tokens, or the last share of all (below 1), which may cut a document")
      .type_name("NUMBER");
  verb.option("--seed", options.seed, "Seed of --val-fraction");
  add_threads_option(verb, options.workers);
  verb.flag("--overwrite", options.overwrite, "Replace a data set that is already in the folder");
  verb.flag("--json", arguments->json, "Print the report as one JSON object");
  verb.footer(
      "hebb data encode books/ --tokenizer tok.model --val-tokens 0.05 --out corpus\n"
      "zcat text.jsonl.gz | hebb data encode - --format jsonl --tokenizer bytes --out corpus\n"
      "Page: docs/verbs/data.md");
  verb.runs([arguments] { run_encode(*arguments); });
}

struct ShardArguments {
  std::string path, format = "auto";
};

std::shared_ptr<const ShardArguments> add_shard_arguments(Command verb) {
  const auto arguments = std::make_shared<ShardArguments>();
  verb.option("PATH", arguments->path, "Data set folder, shard, or quoted pattern").required().type_name("PATH");
  verb.option("--format", arguments->format, "What the files are")
      .one_of({"auto", "raw_u16", "raw_u32", "megatron"})
      .type_name("NAME");
  return arguments;
}

void add_inspect(Command data) {
  Command verb = data.verb("inspect", "Shows what a data set, a shard or a pattern of shards holds");
  verb.runs([a = add_shard_arguments(verb)] { print(describe_shards(a->path, a->format)); });
}

void add_verify(Command data) {
  Command verb = data.verb("verify", "Reads every byte of a data set and reports all damage (exit code 3)");
  verb.runs([a = add_shard_arguments(verb)] {
    const VerifyReport report = verify_shards(a->path, a->format);
    print(report.text());
    return static_cast<int>(report.ok() ? ExitCode::kDone : ExitCode::kData);
  });
}

struct SynthArguments {
  uint64_t documents = 0, seed = 0;
  std::string out = "-";
};

void run_synth(const SynthArguments& arguments) {
  LineOutput out(arguments.out);
  const auto progress = arguments.out == "-" ? std::make_unique<Progress>() : stderr_progress();
  progress->begin("synth", arguments.documents);
  for (uint64_t d = 0; d < arguments.documents; ++d) {
    out.line(Json::object({{"text", synth_document(arguments.seed, d)}}).dump());
    progress->update(d + 1);
  }
  out.finish();
  progress->end();
}

void add_synth(Command data) {
  Command verb =
      data.verb("synth", "Writes the built-in corpus as JSONL: sentences with topic words and repeated facts");
  const auto arguments = std::make_shared<SynthArguments>();
  verb.option("--documents", arguments->documents, "Number of documents, about 1,000 bytes each").required();
  verb.option("--seed", arguments->seed, "Seed of the texts");
  verb.option("-o,--out", arguments->out, "File to write; - = standard output").type_name("FILE");
  verb.runs([arguments] { run_synth(*arguments); });
}

struct SynthTaskArguments {
  SyntheticTask task;
  int64_t vocab = 0;
  uint64_t first = 0, rows = 1;
  bool no_filler = false;
  std::string out = "-";
};

/// Options that only some tasks read.
const std::vector<std::pair<std::string, std::vector<std::string>>> kTaskOptions = {
    {"--length-block", {"icr_basic", "icr_positional"}},
    {"--vocab", {"icr_basic", "icr_positional", "mqar"}},
    {"--word", {"icr_basic", "icr_positional"}},
    {"--queries", {"icr_basic"}},
    {"--copies", {"icr_positional"}},
    {"--functions", {"icl"}},
    {"--dim", {"icl"}},
    {"--x-max", {"icl"}},
    {"--coef-max", {"icl"}},
    {"--pairs", {"mqar"}},
    {"--no-filler", {"mqar"}}};

void check_task_options(const Command& verb, const std::string& task) {
  for (const auto& [option, tasks] : kTaskOptions) {
    if (verb.is_given(option) && std::find(tasks.begin(), tasks.end(), task) == tasks.end()) {
      throw ConfigError(option, "--task " + task, "a task that reads this option");
    }
  }
}

void run_synth_task(SynthTaskArguments& arguments) {
  constexpr int64_t kIcrVocab = 10'000, kMqarVocab = 8'192;
  SyntheticTask& task = arguments.task;
  task.vocab = arguments.vocab > 0 ? arguments.vocab : task.task == "mqar" ? kMqarVocab : kIcrVocab;
  task.filler = !arguments.no_filler;
  check_task(task, "synth-task");
  const auto list = [](const std::vector<int32_t>& values) { return Json::array({values.begin(), values.end()}); };
  LineOutput out(arguments.out);
  for (uint64_t k = arguments.first; k < arguments.first + arguments.rows; ++k) {
    const TaskRow row = generate_task_row(task, k);
    out.line(Json::object({{"x", list(row.inputs)}, {"y", list(row.targets)}}).dump());
  }
  out.finish();
}

void add_synth_task(Command data) {
  Command verb =
      data.verb("synth-task", "Writes rows of a synthetic recall task as JSON lines {\"x\": [...], \"y\": [...]}");
  const auto arguments = std::make_shared<SynthTaskArguments>();
  SyntheticTask& task = arguments->task;
  verb.option("--task", task.task, "icr_basic, icr_positional, icl or mqar").required().type_name("NAME");
  verb.option("--length", task.lengths, "Row length; several for ICR, drawn per block of rows [tokens]")
      .required()
      .type_name("INT")
      .default_text("");
  verb.option("--seed", task.seed, "Seed of the rows");
  verb.option("--rows", arguments->rows, "Number of rows");
  verb.option("--first", arguments->first, "Index of the first row");
  verb.option("--length-block", task.length_block, "ICR: rows per length draw");
  verb.option("--vocab", arguments->vocab, "ICR, MQAR: size of the alphabet; 0 = 10000 (ICR), 8192 (MQAR)");
  verb.option("--word", task.word, "ICR: length of keys and values [tokens]");
  verb.option("--queries", task.queries, "icr_basic: pairs that are asked");
  verb.option("--copies", task.copies, "icr_positional: values per key");
  verb.option("--functions", task.functions, "ICL: functions in a row");
  verb.option("--dim", task.dim, "ICL: numbers per vector");
  verb.option("--x-max", task.x_max, "ICL: largest input");
  verb.option("--coef-max", task.coef_max, "ICL: largest coefficient");
  verb.option("--pairs", task.pairs, "MQAR: pairs of key and value");
  verb.flag("--no-filler", arguments->no_filler, "MQAR: 0 instead of random tokens between the queries");
  verb.option("-o,--out", arguments->out, "File to write; - = standard output").type_name("FILE");
  verb.runs([arguments, verb] {
    check_task_options(verb, arguments->task.task);
    run_synth_task(*arguments);
  });
}

}  // namespace

void add_data_verb(Command program) {
  Command data = program.verb("data", "Turns text into token shards, checks them, writes synthetic data");
  add_encode(data);
  add_inspect(data);
  add_verify(data);
  add_synth(data);
  add_synth_task(data);
}

}  // namespace hebb
