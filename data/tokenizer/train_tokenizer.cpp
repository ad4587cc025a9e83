#include "data/tokenizer/train_tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <unordered_map>
#include <vector>

#include "core/elapsed.h"
#include "core/error.h"
#include "core/random.h"
#include "core/utf8.h"
#include "data/tokenizer/sentencepiece_model.h"

#if HEBB_HAVE_SENTENCEPIECE
#include <sentencepiece_trainer.h>
#endif

namespace hebb {

#if HEBB_HAVE_SENTENCEPIECE
namespace {

constexpr size_t kMaxLineBytes = 16 * 1024;
constexpr int64_t kFixedTokens = 3 + 256;               // unk, bos, eos; bytes
constexpr std::string_view kReserved = "\xE2\x96\x85";  // U+2585: the library drops lines that hold it

/// Whether each document of the input belongs to the sample.
std::vector<bool> choose_sample(const std::vector<uint32_t>& sizes, const TrainTokenizerOptions& options,
                                TrainedTokenizer& result) {
  std::vector<bool> chosen(sizes.size());
  const Permutation order(sizes.size(), options.seed, "spm", 0);
  for (uint64_t i = 0; i < sizes.size() && result.bytes < options.train_bytes; ++i) {
    const uint64_t document = order(i);
    chosen[document] = true;
    result.bytes += sizes[document];
    ++result.documents;
  }
  return chosen;
}

/// Sizes of all documents in bytes; larger ones than 4 GiB count as 4 GiB.
std::vector<uint32_t> measure(const TrainTokenizerOptions& options, Progress& progress, TrainedTokenizer& result) {
  TextReader reader(options.input, [&](const std::string& note) { progress.message(note); });
  std::vector<uint32_t> sizes;
  progress.begin("measure", reader.raw().bytes_total(), Progress::Unit::bytes);
  for (std::string text; reader.next(text);) {
    sizes.push_back(static_cast<uint32_t>(std::min<size_t>(text.size(), UINT32_MAX)));
    progress.update(reader.raw().bytes_read());
  }
  progress.end();
  result.input = reader.counts();
  return sizes;
}

/// The lines of the sample, as the library pulls them.
class SampleLines final : public sentencepiece::SentenceIterator {
 public:
  SampleLines(const TrainTokenizerOptions& options, std::vector<bool> chosen, Progress& progress,
              TrainedTokenizer& result)
      : reader_(options.input), chosen_(std::move(chosen)), progress_(progress), result_(result) {
    progress_.begin("sample", result_.bytes, Progress::Unit::bytes);
    Next();
  }

  bool done() const override { return is_done_; }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }
  /// The library is not written for exceptions: they wait here.
  void Next() override {
    try {
      is_done_ = is_done_ || !advance();
    } catch (...) {
      failure_ = std::current_exception();
      is_done_ = true;
    }
    if (is_done_ && !has_ended_) {
      has_ended_ = true;
      progress_.end();
    }
  }
  void rethrow() const {
    if (failure_) { std::rethrow_exception(failure_); }
  }

 private:
  bool advance() {
    do {
      while (at_ >= document_.size()) {
        if (!next_document()) { return false; }
      }
      cut_line();
    } while (line_.empty());
    ++result_.lines;
    return true;
  }

  bool next_document() {
    done_bytes_ += document_.size();
    progress_.update(done_bytes_);
    while (reader_.next(document_)) {
      if (chosen_[index_++]) {
        at_ = 0;
        return true;
      }
    }
    return false;
  }

  void cut_line() {
    const std::string_view rest = std::string_view(document_).substr(at_, kMaxLineBytes + 1);
    const size_t newline = rest.find('\n'), reserved = rest.find(kReserved);
    size_t size = std::min({newline, reserved, rest.size()});
    size_t skip = reserved < newline ? kReserved.size() : 1;
    if (size > kMaxLineBytes) {
      size = cut_place(rest);
      skip = 0;
      ++result_.cut_lines;
    }
    line_.assign(rest.substr(0, size));
    at_ += size + skip;
  }

  // The last white space that leaves at most kMaxLineBytes, else the last border between characters.
  static size_t cut_place(std::string_view rest) {
    const size_t space = rest.find_last_of(" \t\r", kMaxLineBytes);
    if (space != std::string_view::npos && space > 0) { return space; }
    size_t cut = kMaxLineBytes;
    while (is_utf8_continuation(rest[cut])) { --cut; }
    return cut;
  }

  TextReader reader_;
  std::vector<bool> chosen_;
  Progress& progress_;
  TrainedTokenizer& result_;
  std::string document_, line_;
  size_t at_ = 0, index_ = 0;
  uint64_t done_bytes_ = 0;
  bool is_done_ = false, has_ended_ = false;
  std::exception_ptr failure_;
};

std::unordered_map<std::string, std::string> settings(const TrainTokenizerOptions& options) {
  return {{"model_type", options.model_type},
          {"vocab_size", std::to_string(options.vocab_size)},
          {"num_threads", std::to_string(options.threads)},
          {"byte_fallback", "true"},
          {"character_coverage", "0.9995"},
          {"unk_id", "0"},
          {"bos_id", "1"},
          {"eos_id", "2"},
          {"pad_id", "-1"},
          {"split_digits", "true"},
          {"normalization_rule_name", "identity"},
          {"remove_extra_whitespaces", "false"},
          {"add_dummy_prefix", "false"},
          {"max_sentence_length", std::to_string(kMaxLineBytes)},
          {"input_sentence_size", "0"},
          {"shuffle_input_sentence", "false"},
          {"minloglevel", "3"}};
}

void check(const TrainTokenizerOptions& options) {
  if (options.model_type != "bpe" && options.model_type != "unigram") {
    throw ConfigError("--model-type", "\"" + options.model_type + "\"", "bpe or unigram");
  }
  if (options.vocab_size <= kFixedTokens || options.vocab_size > INT32_MAX) {
    throw ConfigError(
        "--vocab-size", std::to_string(options.vocab_size),
        fmt::format("{:d} (one more than 3 special and 256 byte tokens) to {:d}", kFixedTokens + 1, INT32_MAX));
  }
  if (options.threads < 1 || options.threads > 128) {
    throw ConfigError("--threads", std::to_string(options.threads), "1 to 128");
  }
  for (const std::string& input : options.input.inputs) {
    std::error_code ignored;  // reading says what is wrong
    const fs::file_status status = fs::status(input == "-" ? "/dev/stdin" : input, ignored);
    if (fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status)) {
      throw ConfigError("input", input + ", which is read twice", "files");
    }
  }
  if (options.train_bytes == 0) { throw ConfigError("--train-bytes", "0", "an integer >= 1"); }
}

// "INTERNAL: file.cc(12) [condition] Text." -> "Text."
std::string library_message(const std::string& status) {
  const size_t bracket = status.find("] ");
  return bracket == std::string::npos ? status : status.substr(bracket + 2);
}

}  // namespace

TrainedTokenizer train_tokenizer(const TrainTokenizerOptions& options, Progress& progress) {
  check(options);
  TrainedTokenizer result;
  const std::vector<uint32_t> sizes = measure(options, progress, result);
  if (sizes.empty()) {
    throw DataError(options.input.inputs.empty() ? "" : options.input.inputs.front(), "no text to train on",
                    "0 documents", "at least one");
  }
  SampleLines lines(options, choose_sample(sizes, options, result), progress, result);
  const auto start = std::chrono::steady_clock::now();
  auto with = settings(options);
  if (options.fits_vocab) { with["hard_vocab_limit"] = "false"; }  // models store what is set: else not set
  const auto status = sentencepiece::SentencePieceTrainer::Train(with, &lines, &result.model);
  result.seconds = seconds_since(start);
  lines.rethrow();
  if (!status.ok()) {
    throw ConfigError(fmt::format("--vocab-size {:d}", options.vocab_size),
                      fmt::format("SentencePiece cannot train on {:d} bytes of text: {}{}", result.bytes,
                                  library_message(status.ToString()),
                                  options.fits_vocab ? "" : " (--fit-vocab takes what the text gives)"));
  }
  result.vocab_size = static_cast<int64_t>(parse_sentencepiece_model(result.model, "trained model").pieces.size());
  if (result.vocab_size != options.vocab_size && !options.fits_vocab) {
    throw ConfigError("--vocab-size", std::to_string(options.vocab_size),
                      fmt::format("at most {:d} for this text, or --fit-vocab", result.vocab_size));
  }
  return result;
}

#else

TrainedTokenizer train_tokenizer(const TrainTokenizerOptions&, Progress&) {
  throw ConfigError("tokenizer training", "a build without sentencepiece",
                    "a build with the package libsentencepiece-dev");
}

#endif

}  // namespace hebb
