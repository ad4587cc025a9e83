// hebb tokenizer train | encode | decode | info
#include <fmt/core.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>

#include "core/join.h"
#include "core/parallel.h"
#include "core/plural.h"
#include "core/progress.h"
#include "core/retry.h"
#include "data/tokenizer/sentencepiece_model.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/tokenizer/train_tokenizer.h"
#include "tools/command_line.h"
#include "tools/options.h"
#include "tools/output_lock.h"
#include "tools/verbs.h"

namespace hebb {
namespace {

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

/// Loads for encoding and decoding only, where it does not matter whether the special ids exist.
std::shared_ptr<const Tokenizer> load_plain(const std::string& name) {
  TokenizerConfig config = tokenizer_named(name);
  config.add_eos = false;
  return Tokenizer::load(config);
}

std::string read_input(const std::string& path) {
  if (path != "-") { return read_file(path); }
  return std::string(std::istreambuf_iterator<char>(std::cin), {});
}

struct TrainArguments {
  TrainTokenizerOptions options;
  std::string out;
  int threads = 0;
  bool overwrite = false;
};

/// Makes the folder of a file that is to be written. Errors: ConfigError where that is not possible.
void require_writable(const fs::path& file) {
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  std::error_code error;
  retried(error, [&] { fs::create_directories(folder, error); });
  if (::access(folder.c_str(), W_OK) != 0) {
    throw ConfigError("--out", file.string() + ": " + std::strerror(errno), "a file in a folder that can be written");
  }
}

void run_train(TrainArguments& arguments) {
  if (fs::exists(arguments.out) && !arguments.overwrite) {
    throw ConfigError("--out", arguments.out + ", which exists", "a new file, or --overwrite");
  }
  require_writable(arguments.out);  // before the corpus is read
  std::optional<OutputLock> lock;
  if (!is_special_file(arguments.out)) { lock.emplace(arguments.out); }
  set_threads(arguments.threads);
  constexpr int kMostThreads = 128;  // of the library
  arguments.options.threads = std::min(threads(), kMostThreads);
  const auto progress = stderr_progress();
  const TrainedTokenizer trained = train_tokenizer(arguments.options, *progress);
  write_file_atomic(arguments.out, trained.model);
  print(
      fmt::format("{}: {}, {:d} tokens\nsample: {:d} of {:d} documents, {}, {:d} lines ({:d} cut for their "
                  "length)\ntraining: {}, {:d} threads\n",
                  arguments.out, arguments.options.model_type, trained.vocab_size, trained.documents,
                  trained.input.documents, format_bytes(static_cast<double>(trained.bytes)), trained.lines,
                  trained.cut_lines, format_duration(trained.seconds), arguments.options.threads));
}

void add_train(Command tokenizer) {
  Command verb = tokenizer.verb(
      "train",
      "Trains a SentencePiece model: byte fallback, single digits, no normalisation, decodes to the same text");
  const auto arguments = std::make_shared<TrainArguments>();
  TrainTokenizerOptions& options = arguments->options;
  add_text_input_options(verb, options.input);
  verb.option("-o,--out", arguments->out, "The .model file to write").required().type_name("FILE");
  verb.option("--model-type", options.model_type, "bpe or unigram").type_name("NAME");
  verb.option("--vocab-size", options.vocab_size, "Vocabulary with 3 special and 256 byte tokens [tokens]");
  verb.flag("--fit-vocab", options.fits_vocab, "Take a smaller vocabulary where the text gives no more");
  verb.option("--train-bytes", options.train_bytes, "Size of the random sample of documents to train on [bytes]");
  verb.option("--seed", options.seed, "Seed of the sample");
  add_threads_option(verb, arguments->threads);
  verb.flag("--overwrite", arguments->overwrite, "Replace the file if it exists");
  verb.runs([arguments] { run_train(*arguments); });
}

struct CodeArguments {
  std::string tokenizer, input = "-";
};

std::shared_ptr<const CodeArguments> add_code_arguments(Command verb, const char* input) {
  const auto arguments = std::make_shared<CodeArguments>();
  verb.option("TOKENIZER", arguments->tokenizer, "\"bytes\", a SentencePiece .model file or a tokenizer.json")
      .required()
      .type_name("NAME");
  verb.option("FILE", arguments->input, input).type_name("FILE");
  return arguments;
}

void run_encode(const CodeArguments& arguments) {
  const auto tokenizer = load_plain(arguments.tokenizer);
  const std::string text = read_input(arguments.input);
  require_utf8(arguments.input, text);
  print(join(tokenizer->encode(text), " ", [](int32_t id) { return std::to_string(id); }) + "\n");
}

void run_decode(const CodeArguments& arguments) {
  const auto tokenizer = load_plain(arguments.tokenizer);
  const std::string text = read_input(arguments.input);
  constexpr std::string_view kSpace = " \t\r\n,";
  std::vector<int32_t> ids;
  for (size_t at = text.find_first_not_of(kSpace); at != std::string::npos; at = text.find_first_not_of(kSpace, at)) {
    const size_t end = std::min(text.find_first_of(kSpace, at), text.size());
    int32_t id = 0;
    const auto [stop, error] = std::from_chars(text.data() + at, text.data() + end, id);
    if (error != std::errc() || stop != text.data() + end) {
      throw DataError(fmt::format("{}: byte {:d}", arguments.input, at), "no token id",
                      "\"" + text.substr(at, std::min<size_t>(end - at, 20)) + "\"", "an integer");
    }
    ids.push_back(id);
    at = end;
  }
  print(tokenizer->decode(ids));
}

std::string describe_tokenizer_json(const TokenizerJson& json) {
  using Pattern = PreTokenizer::Pattern;
  const char* pattern = json.pattern == Pattern::gpt2        ? "GPT-2"
                        : json.pattern == Pattern::one_digit ? "Qwen 2 (single digits)"
                        : json.pattern == Pattern::digits    ? "cl100k, Llama 3 (up to three digits)"
                                                             : "none";
  return fmt::format(
      "model type: byte-level bpe, {}{}\nadded tokens: {:d}, found in text\nwords: {}\nspace in front of "
      "texts: {}\nnormalisation: {}\n",
      plural(json.merges.size(), "merge"), json.ignores_merges ? ", words of the vocabulary are not merged" : "",
      json.added.size(), pattern, json.adds_space ? "yes" : "no", json.composes ? "NFC" : "none");
}

}  // namespace

std::string describe_tokenizer(const std::string& name) {
  const auto tokenizer = load_plain(name);
  const Tokenizer::Special& special = tokenizer->special();
  std::string text = "tokenizer: " + tokenizer->config().type + "\n";
  if (tokenizer->config().type == "huggingface") {
    text += describe_tokenizer_json(parse_tokenizer_json(tokenizer->model_bytes(), name));
  } else if (!tokenizer->model_bytes().empty()) {
    using Model = SentencePieceModel;
    const Model model = parse_sentencepiece_model(tokenizer->model_bytes(), name);
    const char* type = model.type == Model::Type::bpe       ? "bpe"
                       : model.type == Model::Type::unigram ? "unigram"
                       : model.type == Model::Type::word    ? "word"
                                                            : "char";
    text += std::string("model type: ") + type + "\n";
    text += std::string("byte fallback: ") + (model.byte_fallback ? "yes" : "no") + "\n";
    text += std::string("space in front of texts: ") + (model.add_dummy_prefix ? "yes" : "no") + "\n";
    text += std::string("normalisation: ") + (model.has_normalization_rules ? "rules" : "none") +
            (model.remove_extra_whitespaces ? ", removes extra white space" : "") + "\n";
    text += fmt::format("trained with threads: {:d}\n", model.training_threads);
  }
  return fmt::format("{}vocabulary: {:d}\nbos {}, eos {}, pad {}\nhash: {:016x}\nencoder: {}\n", text,
                     tokenizer->vocab_size(), id_text(special.bos), id_text(special.eos), id_text(special.pad),
                     tokenizer->hash(), tokenizer->encoder_name());
}

void add_tokenizer_verb(Command program) {
  Command tokenizer = program.verb("tokenizer", "Trains tokenizers and applies them to text");
  add_train(tokenizer);

  Command encode = tokenizer.verb("encode", "Prints the token ids of a text, without BOS and EOS");
  encode.runs([a = add_code_arguments(encode, "UTF-8 text; - = standard input")] { run_encode(*a); });

  Command decode = tokenizer.verb("decode", "Prints the text of token ids");
  decode.runs([a = add_code_arguments(decode, "Ids separated by white space or commas; - = standard input")] {
    run_decode(*a);
  });

  Command info = tokenizer.verb("info", "Shows type, vocabulary, special ids and hash of a tokenizer");
  const auto name = std::make_shared<std::string>();
  info.option("TOKENIZER", *name, "\"bytes\", a SentencePiece .model file or a tokenizer.json")
      .required()
      .type_name("NAME");
  info.runs([name] { print(describe_tokenizer(*name)); });
}

}  // namespace hebb
