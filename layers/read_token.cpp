#include "layers/read_token.h"

#include <bit>

#include "layers/model.h"
#include "layers/rope_config.h"

namespace hebb {
namespace {

/// What the launches of the pass depend on; empty where the host decides.
std::vector<int64_t> dependence(const ModelState& state, const NextToken& next, const ReadTokenOptions& options) {
  std::vector<int64_t> depends{static_cast<int64_t>(options.fast.update), options.fast.freeze, options.fast.chunk};
  if (const YarnConfig* yarn = options.attention.yarn; yarn != nullptr) {
    for (const double value : {yarn->factor, yarn->beta_fast, yarn->beta_slow, yarn->attention_factor.value_or(0),
                               static_cast<double>(yarn->original), yarn->truncate.value_or(true) ? 1.0 : 0.0}) {
      depends.push_back(std::bit_cast<int64_t>(value));
    }
  }
  bool is_free = true;
  state.each([&](const LayerState& layer) {
    const std::optional<int64_t> own = layer.launches(next);
    is_free = is_free && own.has_value();
    depends.push_back(own.value_or(0));
  });
  return is_free ? depends : std::vector<int64_t>{};
}

}  // namespace

Tensor read_token(Model& model, Stream& stream, Arena& work, ModelState& state, std::span<const int32_t> tokens,
                  const ReadTokenOptions& options) {
  const int64_t rows = state.rows, vocab = model.config().vocab_size;
  HEBB_ASSERT(static_cast<int64_t>(tokens.size()) == rows && work.in_use_bytes() == 0);
  TokenPass& pass = state.token_pass;
  if (!pass.tokens.tensor().defined()) {
    pass.tokens = Buffer(*state.arena, {rows}, DType::i32, "tokens");
    pass.starts = Buffer(*state.arena, {rows, 1}, DType::i32, "rows");
    pass.logits = Buffer(*state.arena, {rows, vocab}, sum_dtype(model.params().dtype()), "logits");
  }
  const NextToken next{state.tokens, options.fast};
  const Rows structure =
      Rows::tokens(pass.starts, state.positions.empty() ? std::vector<int64_t>(static_cast<size_t>(rows), state.tokens)
                                                        : state.positions);
  copy_to_device(stream, pass.tokens, tokens.data());
  copy_to_device(stream, pass.starts, structure.host_doc_start().data());
  const auto run = [&] {
    Tape tape(stream, work, false);
    Pass forward{tape, structure};
    forward.fast = options.fast;
    forward.attention = options.attention;
    copy(stream, pass.logits, tape.value(model.logits(forward, model.hidden(forward, pass.tokens, &state))));
  };
  // The first token of a state begins its documents.
  std::vector<int64_t> depends = options.as_graph && stream.device == DeviceKind::cuda && next.position > 0
                                     ? dependence(state, next, options)
                                     : std::vector<int64_t>{};
  if (depends.empty()) {
    run();
    return pass.logits;
  }
  if (depends != pass.depends) {
    pass.graph = LaunchGraph();
    pass.depends = std::move(depends);
  }
  const bool is_recorded = pass.graph.is_recorded();
  const int64_t reserved = work.reserved_bytes();
  pass.graph.run(stream, run);
  // With a new segment the next pass may find other places, and need another one: none can be made while it is
  // recorded.
  if (work.reserved_bytes() > reserved) { pass.graph = LaunchGraph(); }
  if (is_recorded) {  // host code did not run
    state.each([&](LayerState& layer) { layer.count_token(next); });
    state.count(1);
  }
  return pass.logits;
}

}  // namespace hebb
