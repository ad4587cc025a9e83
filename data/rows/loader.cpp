#include "data/rows/loader.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/join.h"

namespace hebb {
namespace {

// Bytes of the first pass before the first batch and beside each later one: small data sets are
// checked at once, large ones do not delay the start.
constexpr int64_t kFirstChecksumBytes = int64_t{256} << 20;
constexpr int64_t kChecksumBytesPerBatch = int64_t{64} << 20;
constexpr int64_t kFirstFingerprintTokens = kFirstChecksumBytes / 4;

std::string source_path(size_t i) { return fmt::format("data.sources.{:d}", i); }

void check_batch_arithmetic(const LoaderOptions& o) {
  HEBB_ASSERT(o.batch_size >= 1 && o.micro_batch_size >= 1 && o.sequence_length >= 1 && o.vocab_size >= 1);
  HEBB_ASSERT(o.world >= 1 && o.rank >= 0 && o.rank < o.world && o.lanes % o.world == 0);
  const int64_t lanes = o.lanes > 0 ? o.lanes : o.world, group = lanes * o.micro_batch_size;
  if (o.batch_size % group != 0) {
    throw ConfigError("train.batch_size", fmt::format("{:d} rows", o.batch_size),
                      fmt::format("a multiple of {:d} = {:d} lanes x {:d} rows (train.micro_batch_size)", group, lanes,
                                  o.micro_batch_size));
  }
}

std::vector<std::unique_ptr<RowSource>> open_sources(const DataConfig& config, const LoaderOptions& options) {
  check_batch_arithmetic(options);
  std::vector<std::unique_ptr<RowSource>> sources;
  for (size_t i = 0; i < config.sources.size(); ++i) {
    sources.push_back(make_row_source(config.sources[i], config, source_path(i), static_cast<int64_t>(i),
                                      row_source_context(config, options)));
  }
  return sources;
}

std::vector<double> source_weights(const DataConfig& config, const std::vector<std::unique_ptr<RowSource>>& sources) {
  std::vector<double> weights;
  for (size_t i = 0; i < sources.size(); ++i) {
    const Json& weight = config.sources[i].weight;
    weights.push_back(weight.is_number() ? weight.as_double() : static_cast<double>(*sources[i]->rows_per_epoch()));
  }
  return weights;
}

// Every rank checks its part of the files.
std::vector<const Shard*> shards_of_rank(const std::vector<std::unique_ptr<RowSource>>& sources,
                                         const LoaderOptions& options) {
  std::vector<const Shard*> all, own;
  for (const auto& source : sources) {
    const auto shards = source->shards();
    all.insert(all.end(), shards.begin(), shards.end());
  }
  for (size_t i = static_cast<size_t>(options.rank); i < all.size(); i += static_cast<size_t>(options.world)) {
    own.push_back(all[i]);
  }
  return own;
}

// The value that restore() compares, or a CheckpointError when the state has none of the right kind.
const Json& state_value(const Json& state, const char* key, bool (Json::*is_kind)() const) {
  const Json* value = state.is_object() ? state.find(key) : nullptr;
  if (value == nullptr || !(value->*is_kind)()) {
    throw CheckpointError("state.json: loader." + std::string(key), "damaged loader state",
                          value == nullptr ? "nothing" : value->found(), "a value as hebb writes it");
  }
  return *value;
}

std::vector<int64_t> read_taken(const Json& state) {
  std::vector<int64_t> taken;
  for (const Json& count : state_value(state, "taken", &Json::is_array).items()) {
    if (!count.is_integer() || count.as_int() < 0) {
      throw CheckpointError("state.json: loader.taken", "damaged loader state", count.found(), "a number of rows");
    }
    taken.push_back(count.as_int());
  }
  const int64_t next_row = state_value(state, "next_row", &Json::is_integer).as_int();
  const int64_t sum = std::accumulate(taken.begin(), taken.end(), int64_t{0});
  if (next_row != sum || taken.size() != state_value(state, "sources", &Json::is_array).items().size()) {
    throw CheckpointError("state.json: loader.next_row", "damaged loader state",
                          fmt::format("{:d} rows, {:d} counts", next_row, taken.size()),
                          fmt::format("{:d} rows, the sum of \"taken\", with one count for each source", sum));
  }
  return taken;
}

}  // namespace

RowSourceContext row_source_context(const DataConfig& config, const LoaderOptions& options) {
  return {.seed = config.seed.value_or(options.seed),
          .sequence_length = options.sequence_length,
          .batch_size = options.batch_size,
          .vocab_size = options.vocab_size,
          .document_mask = options.document_mask};
}

MicroBatch::MicroBatch(int64_t rows, int64_t length) : rows(rows), length(length) {
  const auto size = static_cast<size_t>(rows * length);
  inputs.resize(size);
  targets.resize(size);
  doc_ids.resize(size);
}

RowView MicroBatch::view(int64_t row) {
  const int64_t at = row * length;
  return {inputs.data() + at, targets.data() + at, doc_ids.data() + at};
}

Loader::Loader(const DataConfig& config, const LoaderOptions& options)
    : options_(options),
      seed_(config.seed.value_or(options.seed)),
      sources_(open_sources(config, options)),
      mixture_(source_weights(config, sources_)),
      checksums_(shards_of_rank(sources_, options)),
      taken_(sources_.size(), 0) {
  for (size_t i = 0; i < sources_.size(); ++i) {
    config.at(source_path(i) + ".path", [&] { require_tokenizer(*sources_[i], options_.tokenizer_hash); });
    // While the files are whole, where that does not delay the start: checkpoints name it.
    if (sources_[i]->tokens() <= kFirstFingerprintTokens) { sources_[i]->fingerprint(); }
    info_.push_back({sources_[i]->name(), sources_[i]->tokens(), sources_[i]->documents(),
                     sources_[i]->rows_per_epoch(),
                     static_cast<double>(mixture_.shares()[i]) / static_cast<double>(mixture_.total())});
  }
}

Loader::~Loader() { stop(); }

void Loader::add_row(Batch& batch, int64_t index_in_batch) {
  const size_t i = mixture_.take();
  const int64_t k = mixture_.taken()[i] - 1;
  const int64_t in_group = index_in_batch % (lanes() * options_.micro_batch_size);
  const int64_t lane = in_group / options_.micro_batch_size;
  const bool is_own = lane / (lanes() / options_.world) == options_.rank;
  if (is_own && in_group % options_.micro_batch_size == 0) {
    batch.micro.emplace_back(options_.micro_batch_size, options_.sequence_length);
  }
  RowView view{};
  if (is_own) { view = batch.micro.back().view(in_group % options_.micro_batch_size); }
  batch.valid_targets += sources_[i]->row(k, is_own ? &view : nullptr);
  if (sources_[i]->rows_per_epoch() == k) {
    batch.notices.push_back(fmt::format(
        "data source {:d} ({}): all {:d} rows have been used once at global row {:d}; the next epoch begins", i,
        sources_[i]->name(), k, mixture_.next_row() - 1));
  }
}

Loader::Built Loader::build() {
  Built built;
  built.batch.first_row = mixture_.next_row();
  if (!checksums_.is_done()) { checksums_.advance(has_built_ ? kChecksumBytesPerBatch : kFirstChecksumBytes); }
  has_built_ = true;
  for (int64_t j = 0; j < options_.batch_size; ++j) { add_row(built.batch, j); }
  built.taken_after = mixture_.taken();
  return built;
}

bool Loader::build_next() {
  bool succeeded = false;
  try {
    if (!failure_) {  // a failed batch is not skipped by asking again
      Built built = build();
      const std::lock_guard lock(mutex_);
      ready_.push_back(std::move(built));
      succeeded = true;
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
  }
  changed_.notify_all();
  return succeeded;
}

void Loader::run_ahead() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock,
                    [&] { return is_stopping_ || static_cast<int64_t>(ready_.size()) < options_.prefetch_batches; });
      if (is_stopping_) { return; }
    }
    if (!build_next()) { return; }
  }
}

void Loader::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) { thread_.join(); }
  is_stopping_ = false;
}

Batch Loader::next_batch() {
  if (options_.prefetch_batches <= 0) {
    build_next();
  } else if (!thread_.joinable()) {
    thread_ = std::thread([this] { run_ahead(); });
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !ready_.empty() || failure_; });
  if (ready_.empty()) { std::rethrow_exception(failure_); }
  Built built = std::move(ready_.front());
  ready_.pop_front();
  lock.unlock();
  changed_.notify_all();
  taken_ = std::move(built.taken_after);
  return std::move(built.batch);
}

Json Loader::state() const {
  Json taken = Json::array();
  for (const int64_t count : taken_) { taken.push(Json(count)); }
  Json sources = Json::array();
  for (const auto& source : sources_) {
    sources.push(Json::object({{"path", Json(source->name())},
                               {"tokens", Json(source->tokens())},
                               {"documents", Json(source->documents())},
                               {"fingerprint", Json(fmt::format("{:016x}", source->fingerprint()))}}));
  }
  return Json::object({{"next_row", Json(std::accumulate(taken_.begin(), taken_.end(), int64_t{0}))},
                       {"taken", std::move(taken)},
                       {"seed", Json(seed_)},
                       {"sequence_length", Json(options_.sequence_length)},
                       {"sources", std::move(sources)}});
}

std::vector<std::string> Loader::differences(const Json& state) const {
  std::vector<std::string> lines;
  const auto compare = [&](const std::string& what, const Json& found, const Json& expected) {
    if (!(found == expected)) { lines.push_back(what + ": found " + found.found() + ", expected " + expected.found()); }
  };
  compare("train.sequence_length", Json(options_.sequence_length),
          state_value(state, "sequence_length", &Json::is_integer));
  compare("data.seed", Json(seed_), state_value(state, "seed", &Json::is_integer));
  const auto& stored = state_value(state, "sources", &Json::is_array).items();
  if (stored.size() != sources_.size()) {
    compare("number of data.sources", Json(static_cast<int64_t>(sources_.size())),
            Json(static_cast<int64_t>(stored.size())));
    return lines;
  }
  for (size_t i = 0; i < stored.size(); ++i) {
    const std::string where = source_path(i) + " (" + sources_[i]->name() + "): ";
    compare(where + "tokens", Json(sources_[i]->tokens()), state_value(stored[i], "tokens", &Json::is_integer));
    compare(where + "documents", Json(sources_[i]->documents()),
            state_value(stored[i], "documents", &Json::is_integer));
    compare(where + "fingerprint of the files", Json(fmt::format("{:016x}", sources_[i]->fingerprint())),
            state_value(stored[i], "fingerprint", &Json::is_string));
  }
  return lines;
}

std::vector<std::string> Loader::restore(const Json& state, bool allow_change) {
  std::vector<int64_t> taken = read_taken(state);
  std::vector<std::string> changes = differences(state);
  if (!changes.empty() && !allow_change) {
    throw DataError("data", "the data differs from that of the checkpoint (--allow-data-change continues with it): " +
                                join(changes, "; "));
  }
  stop();
  ready_.clear();
  failure_ = nullptr;
  if (taken.size() == sources_.size()) {
    mixture_.restore(std::move(taken));
  } else {
    const int64_t next_row = std::accumulate(taken.begin(), taken.end(), int64_t{0});
    mixture_.restore(std::vector<int64_t>(sources_.size(), 0));
    while (mixture_.next_row() < next_row) { mixture_.take(); }
  }
  taken_ = mixture_.taken();
  return changes;
}

std::string Loader::describe(int64_t total_rows) const {
  std::string text;
  for (size_t i = 0; i < info_.size(); ++i) {
    const SourceInfo& source = info_[i];
    const double rows = source.share * static_cast<double>(total_rows);
    text += fmt::format("data source {} ({}): ", i, source.name);
    if (source.rows_per_epoch) {
      text += fmt::format("{} tokens, {} documents, {} rows, {:.2f} % of the run, {:.2f} epochs\n", source.tokens,
                          source.documents, *source.rows_per_epoch, 100 * source.share,
                          rows / static_cast<double>(*source.rows_per_epoch));
    } else {
      text += fmt::format("generated rows, {:.2f} % of the run\n", 100 * source.share);
    }
  }
  return text;
}

}  // namespace hebb
