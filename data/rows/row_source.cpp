#include "data/rows/row_source.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/hash.h"
#include "data/rows/packing.h"
#include "data/rows/source.h"
#include "data/shards/dataset.h"

namespace hebb {
namespace {

class ShardRows final : public RowSource {
 public:
  ShardRows(const SourceConfig& config, const DataConfig& data, const std::string& where, int64_t index,
            const RowSourceContext& context)
      : source_(open(config, data, where)),
        order_(source_, options(config, data.packing, context), context.sequence_length, context.seed, index),
        vocab_size_(context.vocab_size) {
    const bool all_indexed = std::all_of(source_.shards().begin(), source_.shards().end(),
                                         [](const Shard& shard) { return shard.has_index(); });
    if (config.packing.split_token && all_indexed) {
      throw ConfigError(data.place(where + ".split_token"), std::to_string(*config.packing.split_token),
                        "no split_token, because the documents come from the index");
    }
    if (order_.rows_per_epoch() == 0) {
      throw DataError(
          data.place(where) + " (" + config.path + ")", "no complete row",
          fmt::format("{:d} tokens in {:d} documents", order_.kept_tokens(), order_.kept_documents()),
          fmt::format("at least {:d} tokens (train.sequence_length + 1), with packing \"document\" in one document",
                      context.sequence_length + 1));
    }
  }

  int64_t row(int64_t k, const RowView* out) override {
    const RowPlan plan = order_.plan(k);
    if (out != nullptr) { order_.fill(plan, vocab_size_, out->inputs, out->targets, out->doc_ids); }
    return order_.valid_targets(plan);
  }
  std::optional<int64_t> rows_per_epoch() const override { return order_.rows_per_epoch(); }
  std::string name() const override { return source_.path(); }
  uint64_t fingerprint() const override { return source_.fingerprint(); }
  int64_t tokens() const override { return source_.tokens(); }
  int64_t documents() const override { return source_.documents(); }
  std::vector<const Shard*> shards() const override {
    std::vector<const Shard*> pointers;
    for (const Shard& shard : source_.shards()) { pointers.push_back(&shard); }
    return pointers;
  }

 private:
  static TokenSource open(const SourceConfig& config, const DataConfig& data, const std::string& where) {
    return data.at(where + ".path", [&] {
      return TokenSource(config.path, open_shards(config.path, resolve_shard_options(config, data.packing)));
    });
  }
  static PackingOptions options(const SourceConfig& config, const PackingConfig& inherited,
                                const RowSourceContext& context) {
    PackingOptions options = resolve_packing(config.packing, inherited, context.document_mask);
    options.shuffle_documents &= context.is_shuffled;
    options.shuffle_rows &= context.is_shuffled;
    return options;
  }

  TokenSource source_;
  RowOrder order_;
  int64_t vocab_size_;
};

class TaskRows final : public RowSource {
 public:
  TaskRows(const SourceConfig& config, const std::string& where, const RowSourceContext& context)
      : task_(resolve_task(config.synthetic, where, context.seed, context.sequence_length, context.batch_size)),
        length_(context.sequence_length) {
    if (task_vocabulary(task_) > context.vocab_size) {
      throw ConfigError(where + (task_.task == "icl" ? ".task" : ".vocab"), std::to_string(task_vocabulary(task_)),
                        fmt::format("at most model.vocab_size = {:d}", context.vocab_size));
    }
  }

  int64_t row(int64_t k, const RowView* out) override {
    const auto index = static_cast<uint64_t>(k);
    const int64_t answers = task_answers(task_, task_row_length(task_, index));
    if (out == nullptr) { return answers; }
    const TaskRow row = generate_task_row(task_, index);
    const auto filled = static_cast<int64_t>(row.inputs.size());
    std::copy(row.inputs.begin(), row.inputs.end(), out->inputs);
    std::copy(row.targets.begin(), row.targets.end(), out->targets);
    std::fill(out->inputs + filled, out->inputs + length_, 0);
    std::fill(out->targets + filled, out->targets + length_, -100);
    std::fill(out->doc_ids, out->doc_ids + length_, 0);
    return answers;
  }
  std::optional<int64_t> rows_per_epoch() const override { return std::nullopt; }
  std::string name() const override { return "synthetic:" + task_.task; }
  uint64_t fingerprint() const override { return fnv1a64(describe_task()); }

 private:
  // All that the rows depend on.
  std::string describe_task() const {
    std::string text = task_.task;
    const auto add = [&](uint64_t value) { text += fmt::format(" {:d}", value); };
    add(task_.seed);
    for (const int64_t value : {task_.length_block, task_.vocab, task_.word, task_.queries, task_.copies,
                                task_.functions, task_.dim, task_.x_max, task_.coef_max, task_.pairs}) {
      add(static_cast<uint64_t>(value));
    }
    add(task_.filler ? 1 : 0);
    for (const int64_t length : task_.lengths) { add(static_cast<uint64_t>(length)); }
    return text;
  }

  SyntheticTask task_;
  int64_t length_;
};

}  // namespace

void require_tokenizer(const RowSource& source, uint64_t& hash) {
  for (const Shard* shard : source.shards()) {
    require_tokenizer(*shard, hash);
    hash = hash != 0 ? hash : shard->tokenizer_hash();
  }
}

std::unique_ptr<RowSource> make_row_source(const SourceConfig& config, const DataConfig& data, const std::string& where,
                                           int64_t index, const RowSourceContext& context) {
  if (config.type == "synthetic") { return std::make_unique<TaskRows>(config, data.place(where), context); }
  return std::make_unique<ShardRows>(config, data, where, index, context);
}

}  // namespace hebb
