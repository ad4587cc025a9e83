#include "eval/scoring_model.h"

#include <algorithm>
#include <cmath>

#include "layers/ops/host_values.h"

namespace hebb {
namespace {

Stream stream_on(DeviceKind device) {
  Stream stream;
  stream.device = device;
  return stream;
}

Buffer upload(Stream& stream, Arena& arena, std::span<const int32_t> ids, const char* name) {
  Buffer buffer(arena, {static_cast<int64_t>(ids.size())}, DType::i32, name);
  copy_to_device(stream, buffer, ids.data());
  return buffer;
}

constexpr size_t kLogitRows = 256;                // whose logits lie on the host at a time
constexpr int64_t kNeverFull = int64_t{1} << 40;  // a chunk that no queue reaches [tokens]

/// All that is read of a model's logits passes here, but what the caller checks. Errors: NumericError.
std::vector<double> finite(std::vector<double> values) {
  if (!is_finite(values)) { throw not_finite(); }
  return values;
}

bool is_carried(const Param& p) { return p.spec.kind == ParamKind::fast; }

}  // namespace

bool is_finite(std::span<const double> logits) {
  return std::all_of(logits.begin(), logits.end(), [](double value) { return std::isfinite(value); });
}

NumericError not_finite() {
  return {"model", "a logit that is no finite number: weights are not, or what is computed from them"};
}

ScoringModel::Answer answer_of(std::span<const double> logits, int32_t target) {
  const auto best = std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double logit : logits) { sum += std::exp(logit - *best); }
  return {static_cast<int32_t>(best - logits.begin()), logits[static_cast<size_t>(target)] - *best - std::log(sum)};
}

ScoringModel::ScoringModel(ModelSource source, const fs::path& weights, const Compute& compute)
    : source_(std::move(source)),
      compute_(compute),
      stream_(stream_on(compute.device)),
      arena_(compute.device, "model"),
      token_arena_(compute.device, "token"),
      model_(source_.model) {
  model_.params().allocate(arena_, compute.dtype, false);
  load_weights(weights, stream_, model_.params());
}

std::unique_ptr<ModelState> ScoringModel::new_state() { return model_.make_state(arena_, 1); }

std::unique_ptr<ModelState> ScoringModel::new_state(ModelState* before) {
  std::unique_ptr<ModelState> state = new_state();
  for (size_t i = 0; before != nullptr && i < state->blocks.size(); ++i) {
    for (const auto member : {&ModelState::Block::memory, &ModelState::Block::mixer, &ModelState::Block::ffn}) {
      std::unique_ptr<LayerState>& old = before->blocks[i].*member;
      if (old != nullptr && old->stays_between_texts()) { state->blocks[i].*member = std::move(old); }
    }
  }
  return state;
}

bool ScoringModel::has_fast_weights() const {
  const auto& all = model_.params().all();
  return std::any_of(all.begin(), all.end(), [](const auto& p) { return is_carried(*p); });
}

void ScoringModel::set_reading(const ReadSettings& settings) {
  check(settings, source_.model);
  settings_ = settings;
}

void ScoringModel::each_segment(std::span<const int32_t> tokens, ModelState& state, Reading reading,
                                const Segment& done) {
  const auto segment = static_cast<size_t>(settings_.segment);
  for (size_t begin = 0, n = 0; begin < tokens.size(); begin += n) {
    n = std::min(segment, tokens.size() - begin);
    const Rows rows = Rows::streams(stream_, arena_, 1, static_cast<int64_t>(n), state.tokens);
    const Buffer ids = upload(stream_, arena_, tokens.subspan(begin, n), "tokens");
    Tape tape(stream_, arena_, false);
    Pass pass{tape, rows};
    pass.fast.update = reading.update;
    if (reading.update == FastUpdate::at_end && begin + n < tokens.size()) {
      pass.fast.update = FastUpdate::streaming;  // no end yet: tokens only queue up
      pass.fast.chunk = kNeverFull;
    }
    pass.fast.freeze = reading.freeze;
    pass.attention.yarn = settings_.yarn ? &*settings_.yarn : nullptr;
    done(begin, n, pass, model_.hidden(pass, ids, &state));
    if (after_segment_) { after_segment_(); }
  }
}

std::vector<double> ScoringModel::logits(Pass& pass, Var hidden, size_t begin, size_t n) {
  const int64_t d = model_.config().hidden_size;
  const Tensor rows = pass.tape.value(hidden).slice(static_cast<int64_t>(begin) * d, {static_cast<int64_t>(n), d});
  return host_values(stream_, pass.tape.value(model_.logits(pass, pass.tape.constant(rows))));
}

void ScoringModel::each_logits(Pass& pass, Var hidden, size_t begin, size_t end, const Visit& visit) {
  const auto vocab = static_cast<size_t>(model_.config().vocab_size);
  for (size_t i = begin, n = 0; i < end; i += n) {
    n = std::min(end - i, kLogitRows);
    Tape::Scope scope(pass.tape);
    const std::vector<double> rows = logits(pass, hidden, i, n);
    for (size_t r = 0; r < n; ++r) { visit(i + r, std::span(rows).subspan(r * vocab, vocab)); }
  }
}

void ScoringModel::read_each(std::span<const int32_t> tokens, size_t first, ModelState& state, Reading reading,
                             const Visit& visit) {
  each_segment(tokens, state, reading, [&](size_t begin, size_t n, Pass& pass, Var hidden) {
    each_logits(pass, hidden, std::max(first, begin) - begin, n, [&](size_t i, std::span<const double> logits) {
      if (!is_finite(logits)) { throw not_finite(); }
      visit(begin + i, logits);
    });
  });
}

void ScoringModel::read_texts(std::span<const Text> texts,
                              const std::function<void(size_t text, size_t i, std::span<const double> logits)>& visit) {
  HEBB_ASSERT(!has_fast_weights());
  std::vector<int32_t> tokens;
  std::vector<int64_t> documents;
  for (size_t text = 0; text < texts.size(); ++text) {
    tokens.insert(tokens.end(), texts[text].tokens.begin(), texts[text].tokens.end());
    documents.resize(tokens.size(), static_cast<int64_t>(text));
  }
  const Rows rows = Rows::documents(stream_, arena_, 1, static_cast<int64_t>(tokens.size()), documents);
  const Buffer ids = upload(stream_, arena_, tokens, "tokens");
  Tape tape(stream_, arena_, false);
  Pass pass{tape, rows};
  pass.attention.yarn = settings_.yarn ? &*settings_.yarn : nullptr;
  const Var hidden = model_.hidden(pass, ids);
  size_t begin = 0;
  for (size_t text = 0; text < texts.size(); begin += texts[text++].tokens.size()) {
    each_logits(pass, hidden, begin + texts[text].first, begin + texts[text].tokens.size(),
                [&](size_t i, std::span<const double> logits) { visit(text, i - begin, logits); });
  }
  if (after_segment_) { after_segment_(); }
}

std::vector<double> ScoringModel::score(std::span<const int32_t> inputs, std::span<const int32_t> targets,
                                        ModelState& state, Reading reading) {
  HEBB_ASSERT(inputs.size() == targets.size());
  std::vector<double> losses(inputs.size());
  each_segment(inputs, state, reading, [&](size_t begin, size_t n, Pass& pass, Var hidden) {
    const Buffer wanted = upload(stream_, arena_, targets.subspan(begin, n), "targets");
    const Buffer row_loss(arena_, {static_cast<int64_t>(n)}, DType::f64, "losses");
    model_.loss(pass, hidden, wanted, row_loss, 1.0);
    copy_to_host(stream_, losses.data() + begin, row_loss);
  });
  return finite(std::move(losses));
}

std::vector<ScoringModel::Answer> ScoringModel::answers(std::span<const int32_t> inputs,
                                                        std::span<const int32_t> targets, ModelState& state,
                                                        Reading reading) {
  HEBB_ASSERT(inputs.size() == targets.size());
  std::vector<Answer> answers(inputs.size());
  each_segment(inputs, state, reading, [&](size_t begin, size_t n, Pass& pass, Var hidden) {
    for (size_t i = 0, end = 0; i < n; i = end + 1) {  // logits of runs of targets only
      for (end = i; end < n && targets[begin + end] >= 0;) { ++end; }
      if (end == i) { continue; }
      Tape::Scope scope(pass.tape);
      const std::vector<double> rows = finite(logits(pass, hidden, i, end - i));
      const size_t vocab = rows.size() / (end - i);
      for (size_t r = i; r < end; ++r) {
        const auto first = rows.begin() + static_cast<ptrdiff_t>((r - i) * vocab);
        answers[begin + r] = answer_of({first, vocab}, targets[begin + r]);
      }
    }
  });
  return answers;
}

std::vector<double> ScoringModel::read(std::span<const int32_t> tokens, ModelState& state, Reading reading) {
  HEBB_ASSERT(!tokens.empty());
  if (tokens.size() == 1) { return finite(read_next(tokens, state, reading)); }
  std::vector<double> last;
  each_segment(tokens, state, reading, [&](size_t begin, size_t n, Pass& pass, Var hidden) {
    if (begin + n == tokens.size()) { last = finite(logits(pass, hidden, n - 1, 1)); }
  });
  return last;
}

std::vector<double> ScoringModel::read_next(std::span<const int32_t> tokens, ModelState& state, Reading reading) {
  const FastWeightControl fast{.update = reading.update, .freeze = reading.freeze};
  const AttentionControl attention{.yarn = settings_.yarn ? &*settings_.yarn : nullptr};
  const Tensor logits =
      read_token(model_, stream_, token_arena_, state, tokens, {fast, attention, compute_.cuda_graphs});
  if (after_segment_) { after_segment_(); }
  return host_values(stream_, logits);
}

bool ScoringModel::can_join() { return rows_move(*new_state()); }

std::unique_ptr<ModelState> ScoringModel::join(std::span<const StateRow> rows, bool uses_up) {
  return join_rows(stream_, model_, arena_, rows, uses_up);
}

void ScoringModel::read_rows(std::span<const int32_t> tokens, const RowReading& reading) {
  const int64_t length = static_cast<int64_t>(tokens.size()) / reading.rows;
  HEBB_ASSERT(length > 0 && length * reading.rows == static_cast<int64_t>(tokens.size()));
  const Rows rows = Rows::streams(stream_, arena_, reading.rows, length);
  const Buffer ids = upload(stream_, arena_, tokens, "tokens");
  Tape tape(stream_, arena_, false);
  Pass pass{tape, rows};
  pass.fast.freeze = reading.freeze;
  pass.fast.keep = true;
  pass.fast.chunk = reading.fast_chunk;
  pass.attention.yarn = settings_.yarn ? &*settings_.yarn : nullptr;
  pass.inspector = reading.inspector;
  pass.statistics = reading.statistics;
  model_.hidden(pass, ids);
}

void ScoringModel::advance(std::span<const int32_t> tokens, ModelState& state, Reading reading) {
  each_segment(tokens, state, reading, [](size_t, size_t, Pass&, Var) {});
}

Inspector ScoringModel::inspect(const ModelState& state) {
  Inspector found;
  for (size_t i = 0; i < model_.blocks().size(); ++i) {
    const Model::Block& block = model_.blocks()[i];
    const ModelState::Block& held = state.blocks[i];
    for (const auto& [layer, own] :
         {std::pair{block.memory.get(), held.memory.get()}, std::pair{block.mixer.get(), held.mixer.get()},
          std::pair{block.ffn.get(), held.ffn.get()}}) {
      if (layer != nullptr && own != nullptr) { layer->inspect_state(stream_, *own, state.tokens, found); }
    }
  }
  return found;
}

void ScoringModel::flush(ModelState& state, Reading reading) {
  if (reading.update == FastUpdate::streaming && !reading.freeze) { state.flush(stream_); }
}

std::vector<std::vector<char>> ScoringModel::save_fast_weights() {
  std::vector<std::vector<char>> saved;
  for (const auto& p : model_.params().all()) {
    if (is_carried(*p)) {
      saved.emplace_back(static_cast<size_t>(p->value.bytes()));
      copy_to_host(stream_, saved.back().data(), p->value);
    }
  }
  return saved;
}

void ScoringModel::restore_fast_weights(const std::vector<std::vector<char>>& saved) {
  size_t i = 0;
  for (const auto& p : model_.params().all()) {
    if (is_carried(*p)) { copy_to_device(stream_, p->value, saved[i++].data()); }
  }
}

}  // namespace hebb
