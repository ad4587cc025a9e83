#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "layers/model_config.h"
#include "layers/ops/norm.h"
#include "layers/read_token.h"

namespace hebb {

enum class Recompute { none, block, mixer, ffn };

/// Something of each layer of a block.
template <class T> struct BlockParts {
  std::unique_ptr<T> memory, mixer, ffn;

  /// Calls f("mixer", its part) for each that there is.
  template <class F> void each(F&& f) const {
    for (const auto& [role, part] : {std::pair{"memory", memory.get()}, {"mixer", mixer.get()}, {"ffn", ffn.get()}}) {
      if (part != nullptr) { f(role, *part); }
    }
  }
};

/// The carried state of every layer of a model for a fixed batch of rows (docs/glossary.md): what decoding
/// and segment-wise evaluation keep.
struct ModelState {
  using Block = BlockParts<LayerState>;
  Arena* arena;  // that its memory comes from
  int64_t rows;
  std::vector<Block> blocks{};
  int64_t tokens = 0;                // tokens seen so far; rows of the next segment must be built with this offset
  std::vector<int64_t> positions{};  // the same by row, where join_rows() has made the state; `tokens` is the largest
  TokenPass token_pass{};            // of read_token()

  /// Calls f(state) for the state of each layer that has one.
  template <class F> void each(F&& f) const {
    for (const Block& block : blocks) {
      block.each([&](const char*, LayerState& state) { f(state); });
    }
  }
  /// So many tokens more have been seen.
  void count(int64_t more) {
    tokens += more;
    for (int64_t& position : positions) { position += more; }
  }
  /// End of a segment in FastUpdate::streaming.
  void flush(Stream& stream) {
    each([&](LayerState& state) { state.flush(stream); });
  }
};

/// A stack of residual blocks (docs/model.md, Blocks).
class Model {
 public:
  /// Builds the layers and declares their parameters (not allocated yet). `config` must outlive the model.
  explicit Model(const ModelConfig& config);

  const ModelConfig& config() const { return config_; }
  ParamStore& params() { return params_; }
  const ParamStore& params() const { return params_; }
  void set_recompute(Recompute mode) { recompute_ = mode; }
  /// From now on a pass calls `hook` before the embedding, each block and the head, with how many of the parameters
  /// that were declared first it has come to. It reads no trained parameter behind them.
  void call_before_reading(std::function<void(Stream& stream, size_t parameters)> hook) {
    before_reading_ = std::move(hook);
  }

  using Block = BlockParts<Layer>;
  const std::vector<Block>& blocks() const { return blocks_; }

  /// tokens [B T] i32 on the device. Returns the final normed hidden states [B T, d].
  Var hidden(Pass& pass, const Tensor& tokens, ModelState* state = nullptr);
  /// logits [N, V] of hidden states [N, d]; in fp32 for bf16.
  Var logits(Pass& pass, Var hidden);
  /// Cross-entropy of every position (ops/head_loss.h): row_loss [B T] f64. Recording, gradients of
  /// scale * sum are computed, times factor [1] f64 on the device if given; call pass.tape.backward() afterwards.
  void loss(Pass& pass, Var hidden, const Tensor& targets, const Tensor& row_loss, double scale,
            const Tensor& factor = {});

  std::unique_ptr<ModelState> make_state(Arena& arena, int64_t rows) const;
  /// Hooks of layers around an optimizer step (layer.h).
  void begin_step(Stream& stream, int64_t step);
  void after_step(Stream& stream, int64_t step, const Tensor& applies);
  /// Layers whose training passes need the host, and why ("blocks.2.mixer draws ..."); empty: none does.
  std::vector<std::string> needs_host() const;
  /// Layers that read the rows of all ranks, and why; empty: none does.
  std::vector<std::string> needs_all_rows() const;

  /// Forward FLOPs per token at a row length (sum of the layers, norms not counted; lm_head counts,
  /// embed does not).
  double flops_per_token(int64_t length) const;
  int64_t state_bytes(int64_t tokens) const;

 private:
  struct BlockNorms {
    NormParams mixer, ffn;
  };
  struct Residual {  // the residual stream with a branch that is not added yet
    Var h, branch;
  };
  /// Calls f(block, "mixer", layer).
  template <class F> void each_layer(F&& f) const {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      blocks_[i].each([&](const char* role, Layer& layer) { f(i, role, layer); });
    }
  }
  std::vector<std::string> reasons(std::string (Layer::*reason_of)() const) const;
  NormParams declare_norm(const std::string& name);
  void reads(Pass& pass, size_t parameters) const;
  std::vector<Var> recompute(Pass& pass, const std::function<std::vector<Var>()>& fn);
  Residual run_block(Pass& pass, size_t i, Residual s, ModelState::Block* state);
  Var run_branch(Pass& pass, Layer& layer, Var x, LayerState* state, bool again);
  ResidualNorm apply_norm(Pass& pass, const NormParams& norm, const Residual& s) const;
  Param& head() { return lm_head_ != nullptr ? *lm_head_ : *embed_; }

  const ModelConfig& config_;
  ParamStore params_;
  std::vector<Block> blocks_;
  std::vector<BlockNorms> norms_;
  std::vector<size_t> declared_;  // parameters of the embedding and the first i blocks
  std::function<void(Stream& stream, size_t parameters)> before_reading_;
  Param *embed_, *lm_head_ = nullptr;
  NormParams embed_norm_, final_norm_;
  Recompute recompute_ = Recompute::none;
};

}  // namespace hebb
