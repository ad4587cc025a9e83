#include "data/rows/data_config.h"

#include <fmt/core.h>

#include <set>

#include "core/error.h"
#include "core/names.h"
#include "data/tokenizer/tokenizer.h"

namespace hebb {
namespace {

void packing_fields(Fields& f, PackingConfig& c, bool with_shuffle) {
  f.field("packing", c.packing)
      .one_of({"stream", "block", "document"})
      .help(
          "How documents become rows: a continuous stream, blocks of sequence_length + 1 tokens, or rows that never "
          "leave "
          "a document. Default: stream.");
  if (with_shuffle) {
    f.field("shuffle", c.shuffle)
        .one_of({"none", "rows", "documents", "documents+rows"})
        .help(
            "What is permuted in each epoch: rows of the packed stream, documents before packing, or both. Default: "
            "rows.");
  }
  f.field("min_document_tokens", c.min_document_tokens)
      .min(0)
      .unit("tokens")
      .help("Shorter documents are left out, with any packing. Default: 0.");
  f.field("document_rows", c.document_rows)
      .one_of({"all", "first"})
      .help("With packing document: rows at 0, T, 2T, ... of a document, or the first only. Default: all.");
  f.field("tail", c.tail)
      .one_of({"drop", "pad"})
      .help("With packing document: what happens to a last piece shorter than a row. Default: drop.");
  f.field("split_token", c.split_token).min(0).help("Token id that makes documents in files without an index.");
  f.field("split", c.split)
      .one_of({"after", "before"})
      .help("Whether split_token ends a document or starts one. Default: after.");
  f.field("mask_cross_document_targets", c.mask_cross_document_targets)
      .help("Ignore targets that belong to another document than their input. Default: train.document_mask.");
}

void synthetic_fields(Fields& f, SyntheticConfig& c) {
  const bool all = f.mode() == Fields::Mode::describe;
  f.field("task", c.task.task)
      .required()
      .one_of({"icr_basic", "icr_positional", "icl", "mqar"})
      .help("Generator of the rows.");
  const std::string& task = c.task.task;
  const bool icr = task == "icr_basic" || task == "icr_positional";
  f.field("seed", c.seed).help("Seed of the rows. Default: data.seed.");
  f.field("length", c.length).min(1).unit("tokens").help("Length of the rows. Default: train.sequence_length.");
  if (all || icr) {
    f.field("lengths", c.lengths).min(1).unit("tokens").help("Lengths that are mixed, one per block of rows.");
    f.field("length_block", c.length_block)
        .min(1)
        .unit("rows")
        .help("Rows per length draw. Default: train.batch_size.");
    if (f.reading() && c.length_block && c.lengths.empty()) { f.fail("length_block", "needs lengths"); }
    f.field("word", c.task.word).min(1).unit("tokens").help("Tokens per key and per value.");
  }
  if (all || icr || task == "mqar") {
    f.field("vocab", c.vocab).min(1).help("Token ids are below this. Default: 10000 (ICR), 8192 (MQAR).");
  }
  if (all || task == "icr_basic") { f.field("queries", c.task.queries).min(1).help("Pairs that are asked."); }
  if (all || task == "icr_positional") { f.field("copies", c.task.copies).min(1).help("Values per key."); }
  if (all || task == "icl") {
    f.field("functions", c.task.functions).min(1).help("Linear functions per row.");
    f.field("dim", c.task.dim).min(1).help("Numbers per input and output.");
    f.field("x_max", c.task.x_max).min(1).help("Inputs are 1 to x_max.");
    f.field("coef_max", c.task.coef_max).min(1).help("Coefficients are 1 to coef_max.");
  }
  if (all || task == "mqar") {
    f.field("pairs", c.task.pairs).min(1).help("Key-value pairs.");
    f.field("filler", c.task.filler).help("Random tokens between the queries; otherwise zeros.");
  }
}

// Everything but name, weight and max_rows; the same for training and validation.
void source_fields(Fields& f, SourceConfig& c, bool is_training) {
  f.field("type", c.type).one_of({"shards", "synthetic"}).help("Token files, or rows generated on the fly.");
  const bool all = f.mode() == Fields::Mode::describe;
  if (all || c.type == "shards") {
    f.file("path", c.path)
        .required()
        .help(is_training ? "A shard, a pattern of shards (byte order), or a folder with dataset.json."
                          : "A shard, a pattern of shards (byte order), or a data set's folder for its val_*.bin.");
    f.field("format", c.format)
        .one_of({"auto", "raw_u16", "raw_u32", "megatron"})
        .help(
            "auto: hebb and llm.c shards, NumPy files, and Megatron files by their index; headerless files must be "
            "named.");
    packing_fields(f, c.packing, is_training);
  }
  if (all || c.type == "synthetic") { synthetic_fields(f, c.synthetic); }
}

bool is_weight(const Json& weight) {
  return weight.is_number() ? weight.as_double() > 0 : weight.is_string() && weight.as_string() == "rows";
}

/// Refuses values that would change nothing; `path` is "" for those of `data` itself.
void require_use(Fields& f, const std::string& path, const PackingConfig& own, bool packs_documents, bool splits) {
  if (own.document_rows == "first" && !packs_documents) {
    f.fail(path + "document_rows", "\"first\" needs packing \"document\"");
  }
  if (own.tail == "pad" && !packs_documents) { f.fail(path + "tail", "\"pad\" needs packing \"document\""); }
  if (own.split == "before" && !splits) { f.fail(path + "split", "\"before\" needs split_token"); }
}

void check_packing_keys(Fields& f, const DataConfig& c) {
  bool any_documents = false, any_splits = false;
  const auto check = [&](const SourceConfig& source, const std::string& path) {
    const PackingConfig& own = source.packing;
    const bool documents = (own.packing ? own.packing : c.packing.packing) == "document";
    const bool splits = own.split_token || c.packing.split_token;
    any_documents |= documents;
    any_splits |= splits;
    require_use(f, path, own, documents, splits);
  };
  for (size_t i = 0; i < c.sources.size(); ++i) { check(c.sources[i], fmt::format("sources.{:d}.", i)); }
  for (size_t i = 0; i < c.validation.size(); ++i) {
    check(c.validation[i].source, fmt::format("validation.{:d}.", i));
  }
  require_use(f, "", c.packing, any_documents, any_splits);
}

template <class T> T choose(const std::optional<T>& own, const std::optional<T>& inherited, T otherwise) {
  return own ? *own : inherited.value_or(std::move(otherwise));
}

}  // namespace

void fields(Fields& f, SourceConfig& c) {
  source_fields(f, c, true);
  f.field("weight", c.weight).help("Share of the rows: a positive number, or \"rows\" (rows of one epoch).");
  f.require(is_weight(c.weight), "weight", "a number > 0, or \"rows\"");
  f.require(c.type != "synthetic" || !c.weight.is_string(), "weight", "a number > 0: a synthetic source has no end");
}

void fields(Fields& f, ValidationConfig& c) {
  f.field("name", c.name).required().help("Name in logs and metrics.");
  f.require(!c.name.empty() && is_printable(c.name), "name", "a name without control characters");
  source_fields(f, c.source, false);
  f.field("max_rows", c.max_rows)
      .min(1)
      .unit("rows")
      .help("Rows that are read, spread evenly over the source. Default: all.");
  f.field("allow_training_data", c.allow_training_data)
      .help("Files, or task and seed, may be those of a training source. Otherwise they are refused.");
  f.require(c.source.type != "synthetic" || c.max_rows.has_value(), "max_rows",
            "a number: a synthetic source has no end");
}

void fields(Fields& f, DataConfig& c) {
  f.field("seed", c.seed).help("Seed of the order of rows. Default: train.seed.");
  f.list("sources", c.sources).required().not_empty().help("Training data; rows are mixed by weight.");
  f.list("validation", c.validation).help("Validation data, read in order.");
  packing_fields(f, c.packing, true);
  f.field("tokenizer", c.tokenizer).help("Tokenizer of the text. Default: that of the first source.");
  if (f.reading()) {
    if (!c.tokenizer.is_null()) {  // checked here, and its path made absolute
      const auto tokenizer = Fields::read<TokenizerConfig>(c.tokenizer, f.path() + ".tokenizer");
      c.tokenizer = Fields::write(tokenizer);
    }
    std::set<std::string> names;
    for (const ValidationConfig& validation : c.validation) {
      if (!names.insert(validation.name).second) {
        f.fail("validation", fmt::format("two sources have the name \"{}\"", validation.name));
      }
    }
    check_packing_keys(f, c);
  }
}

std::string DataConfig::place(const std::string& path) const { return located(origin_of ? origin_of(path) : "", path); }

PackingOptions resolve_packing(const PackingConfig& own, const PackingConfig& inherited, bool document_mask) {
  const std::string packing = choose<std::string>(own.packing, inherited.packing, "stream");
  const std::string shuffle = choose<std::string>(own.shuffle, inherited.shuffle, "rows");
  return {.packing = packing == "stream"  ? Packing::stream
                     : packing == "block" ? Packing::block
                                          : Packing::document,
          .shuffle_documents = shuffle == "documents" || shuffle == "documents+rows",
          .shuffle_rows = shuffle == "rows" || shuffle == "documents+rows",
          .min_document_tokens = choose<int64_t>(own.min_document_tokens, inherited.min_document_tokens, 0),
          .first_row_only = choose<std::string>(own.document_rows, inherited.document_rows, "all") == "first",
          .pad_tail = choose<std::string>(own.tail, inherited.tail, "drop") == "pad",
          .mask_cross_document_targets = choose<bool>(own.mask_cross_document_targets,
                                                      inherited.mask_cross_document_targets, bool{document_mask})};
}

ShardOptions resolve_shard_options(const SourceConfig& source, const PackingConfig& inherited) {
  return {.format = source.format,
          .split_token = source.packing.split_token ? source.packing.split_token : inherited.split_token,
          .split_before = choose<std::string>(source.packing.split, inherited.split, "after") == "before"};
}

SyntheticTask resolve_task(const SyntheticConfig& config, const std::string& where, uint64_t seed,
                           int64_t sequence_length, int64_t batch_size) {
  SyntheticTask task = config.task;
  task.seed = config.seed.value_or(seed);
  task.length_block = config.length_block.value_or(batch_size);
  task.vocab = config.vocab.value_or(task.task == "mqar" ? 8192 : 10000);
  if (config.length && !config.lengths.empty()) {
    throw ConfigError(where + ".length", "give either length or lengths, not both");
  }
  task.lengths =
      config.lengths.empty() ? std::vector<int64_t>{config.length.value_or(sequence_length)} : config.lengths;
  for (const int64_t length : task.lengths) {
    if (length > sequence_length) {
      throw ConfigError(where + (config.lengths.empty() ? ".length" : ".lengths"), std::to_string(length),
                        fmt::format("at most train.sequence_length = {:d}", sequence_length));
    }
  }
  check_task(task, where);
  return task;
}

}  // namespace hebb
