#include "data/shards/ingest.h"

#include <fmt/core.h>

#include <chrono>
#include <cmath>
#include <deque>
#include <exception>

#include "core/elapsed.h"
#include "core/error.h"
#include "core/folder_lock.h"
#include "core/parallel.h"
#include "core/plural.h"
#include "core/random.h"
#include "data/rows/ordered_pipeline.h"

namespace hebb {
namespace {

constexpr uint64_t kBatchBytes = 1 << 20;
constexpr uint64_t kBytesUnderWay = 512 << 20;  // raw text; matters only for very long documents
constexpr std::string_view kVisibleSpace = "\xE2\x96\x81";

/// Documents that go through the pipeline together.
struct Batch {
  struct Document {
    ParsedDocument::State state;
    std::string problem;
    uint64_t text_bytes, replaced;
    bool has_visible_space;
    size_t tokens;  // of Batch::tokens, in order
  };
  std::vector<RawDocument> raw;  // in
  uint64_t input_position = 0;
  std::vector<Document> documents;  // out
  std::vector<int32_t> tokens;
};

/// Cuts the input into batches. A file that cannot be opened is reported after the documents before it.
class BatchReader {
 public:
  explicit BatchReader(RawReader& reader) : reader_(reader) {}

  bool next(Batch& batch) {
    if (failure_) { std::rethrow_exception(failure_); }
    uint64_t bytes = 0;
    try {
      for (RawDocument raw; bytes < kBatchBytes && reader_.next(raw);) {
        bytes += raw.bytes.size() + 1;
        batch.raw.push_back(std::move(raw));
      }
    } catch (...) {
      failure_ = std::current_exception();
      if (batch.raw.empty()) { throw; }
    }
    batch.input_position = reader_.bytes_read();
    return !batch.raw.empty();
  }

 private:
  RawReader& reader_;
  std::exception_ptr failure_;
};

uint64_t raw_bytes(const Batch& batch) {
  uint64_t bytes = 0;
  for (const RawDocument& raw : batch.raw) { bytes += raw.bytes.size(); }
  return bytes;
}

void encode_batch(Batch& batch, const std::vector<fs::path>& files, const TextInputOptions& input,
                  const Tokenizer& tokenizer, Tokenizer::Encoder& encoder) {
  const Tokenizer::Special& special = tokenizer.special();
  for (RawDocument& raw : batch.raw) {
    ParsedDocument parsed = parse_document(raw, files, input);
    const size_t begin = batch.tokens.size();
    if (parsed.state == ParsedDocument::State::good) {
      if (special.add_bos) { batch.tokens.push_back(special.bos); }
      encoder.encode(parsed.text, batch.tokens);
      if (special.add_eos) { batch.tokens.push_back(special.eos); }
      if (batch.tokens.size() == begin) {
        parsed.state = ParsedDocument::State::empty;
      }  // the tokenizer drops its text
    }
    const bool has_visible_space =
        tokenizer.loses_visible_space() && parsed.text.find(kVisibleSpace) != std::string::npos;
    batch.documents.push_back({parsed.state, std::move(parsed.problem), parsed.text.size(), parsed.replaced,
                               has_visible_space, batch.tokens.size() - begin});
  }
  batch.raw = {};
}

/// Sends documents to the train or the validation shards.
class Splitter {
 public:
  Splitter(const EncodeOptions& options, ShardWriter& writer) : options_(options), writer_(writer) {}

  void add(std::span<const int32_t> tokens) {
    const uint64_t index = count_++;
    tokens_ += tokens.size();
    if (options_.val_documents > 0 || options_.val_tokens > 0 || options_.val_share > 0) {
      held_.emplace_back(tokens.begin(), tokens.end());
      held_tokens_ += tokens.size();
      while (is_for_training(held_.front())) { release(); }
      return;
    }
    const bool is_validation =
        options_.val_fraction > 0 && Rng(options_.seed, "split", index).uniform() < options_.val_fraction;
    writer_.add_document(tokens, is_validation ? DatasetSplit::validation : DatasetSplit::train);
  }

  void finish() {
    if (options_.val_tokens > 0 || options_.val_share > 0) { cut_first(); }
    for (const std::vector<int32_t>& tokens : held_) { writer_.add_document(tokens, DatasetSplit::validation); }
    held_.clear();
  }

  uint64_t tokens() const { return tokens_; }
  /// Tokens of the validation part, as --val-tokens asks for.
  uint64_t wanted() const {
    return options_.val_tokens > 0
               ? options_.val_tokens
               : static_cast<uint64_t>(std::llround(options_.val_share * static_cast<double>(tokens_)));
  }

 private:
  /// Whatever follows. The share of all tokens only grows while documents come.
  bool is_for_training(const std::vector<int32_t>& first) const {
    if (options_.val_documents > 0) { return held_.size() > options_.val_documents; }
    const uint64_t behind = held_tokens_ - first.size();
    return behind >= wanted() + largest_step();
  }
  /// Rounding may move the border of a share by a token.
  uint64_t largest_step() const { return options_.val_share > 0 ? 1 : 0; }

  void release() {
    writer_.add_document(held_.front(), DatasetSplit::train);
    held_tokens_ -= held_.front().size();
    held_.pop_front();
  }

  /// The border of the validation part may be inside the first documents that are held.
  void cut_first() {
    while (held_tokens_ > wanted()) {
      std::vector<int32_t>& first = held_.front();
      const uint64_t before = held_tokens_ - wanted();
      if (before >= first.size()) {
        release();
        continue;
      }
      writer_.add_document(std::span(first).first(before), DatasetSplit::train);
      first.erase(first.begin(), first.begin() + static_cast<ptrdiff_t>(before));
      held_tokens_ -= before;
    }
  }

  const EncodeOptions& options_;
  ShardWriter& writer_;
  uint64_t count_ = 0, tokens_ = 0, held_tokens_ = 0;
  std::deque<std::vector<int32_t>> held_;  // the last documents so far
};

void check(const EncodeOptions& options) {
  if (!(options.val_fraction >= 0 && options.val_fraction < 1)) {
    throw ConfigError("--val-fraction", Json(options.val_fraction).dump(), "0 <= fraction < 1");
  }
  const auto both = [](const char* a, const char* b) {
    throw ConfigError(a, std::string("give it or ") + b + ", not both");
  };
  const bool has_val_tokens = options.val_tokens > 0 || options.val_share > 0;
  if (options.val_fraction > 0 && options.val_documents > 0) { both("--val-fraction", "--val-documents"); }
  if (has_val_tokens && options.val_documents > 0) { both("--val-tokens", "--val-documents"); }
  if (has_val_tokens && options.val_fraction > 0) { both("--val-tokens", "--val-fraction"); }
  if (options.shard_tokens < 1) {
    throw ConfigError("--shard-tokens", std::to_string(options.shard_tokens), "an integer >= 1");
  }
  if (options.workers < 0) { throw ConfigError("--threads", std::to_string(options.workers), "an integer >= 0"); }
}

ShardWriterOptions writer_options(const EncodeOptions& options, const Tokenizer& tokenizer) {
  TokenizerConfig stored = options.tokenizer;
  stored.file = tokenizer_copy_name(stored);
  Json described = Fields::write(stored);
  if (tokenizer.model_bytes().empty()) { described.erase("file"); }
  return {.directory = options.out,
          .vocab_size = tokenizer.vocab_size(),
          .bos = tokenizer.special().bos,
          .eos = tokenizer.special().eos,
          .tokenizer_hash = tokenizer.hash(),
          .tokenizer = std::move(described),
          .model_file = stored.file,
          .model_bytes = tokenizer.model_bytes(),
          .shard_tokens = options.shard_tokens,
          .overwrite = options.overwrite};
}

void require_documents(const EncodeOptions& options, const TextCounts& counts, const Splitter& splitter) {
  const std::string where = options.input.inputs.empty() ? "input" : options.input.inputs.front();
  if (counts.documents == 0) {
    throw DataError(where, "no documents in the input", fmt::format("{:d} empty", counts.empty),
                    "at least one with text");
  }
  if (counts.documents <= options.val_documents) {
    throw DataError(where, "no documents left for training", fmt::format("{:d} documents", counts.documents),
                    fmt::format("more than --val-documents {:d}", options.val_documents));
  }
  if (splitter.wanted() >= splitter.tokens()) {
    throw DataError(where, "no tokens left for training", plural(splitter.tokens(), "token"),
                    fmt::format("more than --val-tokens {:d}", splitter.wanted()));
  }
}

std::vector<std::string> warnings_of(const EncodeOptions& options, const EncodeReport& report) {
  const ShardWriter::Summary& out = report.output;
  std::vector<std::string> warnings;
  if (options.val_fraction > 0 && out.validation_documents == 0) {
    warnings.push_back(
        fmt::format("the validation part is empty: --val-fraction {:g} has drawn none of {}; --val-tokens "
                    "takes a share of the tokens",
                    options.val_fraction, plural(out.train_documents, "document")));
  }
  if (options.val_share > 0 && out.validation_tokens == 0) {
    warnings.push_back(fmt::format("the validation part is empty: --val-tokens {:g} of {} is less than one",
                                   options.val_share, plural(out.train_tokens, "token")));
  }
  if (out.validation_tokens > out.train_tokens) {
    warnings.push_back(fmt::format("the validation part has {:d} of {}, more than half; --val-tokens cuts documents",
                                   out.validation_tokens, plural(report.tokens(), "token")));
  }
  return warnings;
}

}  // namespace

EncodeReport encode_corpus(const EncodeOptions& options, Progress& progress) {
  check(options);
  const auto start = std::chrono::steady_clock::now();
  const auto tokenizer = Tokenizer::load(options.tokenizer);
  RawReader reader(options.input);
  const std::vector<fs::path> files = reader.files();  // the reader itself belongs to the producer
  for (const std::string& note : reader.notes()) { progress.message("note: " + note); }
  FolderLock lock(options.out, {.name = "data set folder"}, [&](const std::string& text) { progress.message(text); });
  std::vector<fs::path> own{options.out / "lock"};
  if (!lock.created().empty()) { own.push_back(options.out); }
  const auto cleanup = lock.remove_at_signals(own);
  ShardWriter writer(writer_options(options, *tokenizer));
  Splitter splitter(options, writer);
  DocumentFilter filter(options.input.skip_bad, [&](const std::string& note) { progress.message(note); });

  EncodeReport report;
  report.workers = options.workers > 0 ? options.workers : threads();
  BatchReader batches(reader);
  const auto make_work = [&] {
    auto encoder = std::make_shared<Tokenizer::Encoder>(tokenizer);
    return [&, encoder](Batch& batch) { encode_batch(batch, files, options.input, *tokenizer, *encoder); };
  };
  OrderedPipeline<Batch> pipeline(
      {static_cast<size_t>(2 * report.workers + 2), kBytesUnderWay}, [&](Batch& batch) { return batches.next(batch); },
      raw_bytes, make_work);
  progress.begin("encode", reader.bytes_total(), Progress::Unit::bytes);
  pipeline.run(report.workers, [&](Batch& batch) {
    std::span<const int32_t> rest(batch.tokens);
    for (const Batch::Document& document : batch.documents) {
      if (filter.accept(document.state, document.problem, document.text_bytes, document.replaced)) {
        splitter.add(rest.first(document.tokens));
        report.visible_space_documents += document.has_visible_space ? 1 : 0;
      }
      rest = rest.subspan(document.tokens);
    }
    progress.update(batch.input_position, plural(filter.counts().documents, "document"));
  });
  report.input = filter.counts();
  report.input.files = reader.files_opened();
  require_documents(options, report.input, splitter);
  splitter.finish();
  lock.require_own();
  report.output = writer.finish();
  report.seconds = seconds_since(start);
  progress.end();
  report.warnings = warnings_of(options, report);
  if (const std::string text = reader.separator_warning(); !text.empty()) { report.warnings.push_back(text); }
  for (const std::string& text : report.warnings) { progress.message("warning: " + text); }
  return report;
}

double EncodeReport::megabytes_per_second() const {
  return seconds > 0 ? static_cast<double>(input.text_bytes) / 1e6 / seconds : 0;
}

std::string EncodeReport::text() const {
  std::string text = "train: " + plural(output.train_documents, "document") + ", " +
                     plural(output.train_tokens, "token") + ", " + plural(output.train.size(), "shard") + "\n";
  if (!output.validation.empty()) {
    text += "validation: " + plural(output.validation_documents, "document") + ", " +
            plural(output.validation_tokens, "token") + ", " + plural(output.validation.size(), "shard") + "\n";
  }
  text += "input: " + plural(input.files, "file") + ", " + format_bytes(static_cast<double>(input.text_bytes)) +
          " of text, " + plural(input.empty, "empty document") + " skipped, " + plural(input.bad, "bad line") +
          " left out, " + plural(input.replaced, "invalid UTF-8 piece") + " replaced\n";
  if (visible_space_documents > 0) {
    text += "note: " + plural(visible_space_documents, "document") + " with U+2581, which decodes to a space\n";
  }
  return text + fmt::format("speed: {:.2f} MB/s with {} ({:.1f} s), {:.3f} bytes per token\n", megabytes_per_second(),
                            plural(static_cast<uint64_t>(workers), "worker"), seconds,
                            tokens() > 0 ? static_cast<double>(input.text_bytes) / static_cast<double>(tokens()) : 0.0);
}

Json EncodeReport::json() const {
  return Json::object({{"train_documents", Json(output.train_documents)},
                       {"train_tokens", Json(output.train_tokens)},
                       {"train_shards", Json(static_cast<uint64_t>(output.train.size()))},
                       {"validation_documents", Json(output.validation_documents)},
                       {"validation_tokens", Json(output.validation_tokens)},
                       {"validation_shards", Json(static_cast<uint64_t>(output.validation.size()))},
                       {"files", Json(input.files)},
                       {"text_bytes", Json(input.text_bytes)},
                       {"empty_documents", Json(input.empty)},
                       {"bad_lines", Json(input.bad)},
                       {"replaced_utf8", Json(input.replaced)},
                       {"visible_space_documents", Json(visible_space_documents)},
                       {"workers", Json(workers)},
                       {"seconds", Json(seconds)},
                       {"warnings", Json::array({warnings.begin(), warnings.end()})},
                       {"mb_per_second", Json(megabytes_per_second())}});
}

}  // namespace hebb
