#pragma once
#include "kernels/fwpkm/fwpkm.h"
#include "layers/fast/queue.h"

namespace hebb {

/// What the configurations of fast-weight memories share.
struct MemoryBranchConfig : LayerConfig {
  int64_t value_dim = 512, gate_width = 8, chunk_size = 512, lookahead = 1;
  bool value_norm = true, gate = true;
  std::string sync = "global";

  bool learns_per_micro_batch() const override { return true; }

 protected:
  void chunk_fields(Fields& f, std::string_view lookahead_help);
  void gate_fields(Fields& f);
  /// The last field, and the checks of all of these.
  void sync_field(Fields& f);
};

/// A fast-weight memory but for the fast weights themselves. The trained part (docs/layers/fwpkm.md, Parameters and
/// Retrieval): projections to queries, values and a gate, and the way back to the residual stream. And what is read and
/// learned when: rows by chunks, streams through a queue.
class MemoryBranch : public Layer {
 public:
  Var forward(Pass& pass, Var x, LayerState* state) override;
  std::unique_ptr<LayerState> make_state(Arena& arena, int64_t rows, DType dtype) const override;
  std::string needs_all_rows() const override;

 protected:
  /// type: of the layer, for messages; weighted: g weighs a token's write.
  MemoryBranch(const BuildContext& context, const MemoryBranchConfig& config, std::string type, int64_t key_width,
               bool weighted);
  /// Fast weights: those of all rows, or of each lane its own.
  Param* declare_fast(const BuildContext& context, const char* name, Shape shape, const Init& init) const;

  /// vh [N, value_dim] of the rows of `pass` by chunks; q [N, key_width], v [N, value_dim], w [N] or no Var.
  virtual Var read_rows(Pass& pass, Var q, Var v, Var w) = 0;
  /// Those of the tokens of `chunk`, with the fast weights of now.
  virtual void read_tokens(Stream& stream, Arena& arena, const Tensor& q, const FastChunk& chunk,
                           const Tensor& vh) const = 0;
  /// One update by the first `pairs` tokens of a queue.
  virtual void update(Stream& stream, const FastQueue& queue, int64_t pairs) const = 0;

  double branch_flops() const;
  /// Tokens of a row that a queue holds after `tokens` tokens.
  int64_t queued(int64_t tokens) const;
  const std::string& name() const { return name_; }

 private:
  /// q [N, key_width], v [N, value_dim], g [N] (no Var without a gate) of x [N, d]; in fp32 where x is bf16.
  struct Inputs {
    Var q, v, g;
  };
  struct Projection {
    Param *norm, *weight, *bias;
  };
  Projection declare(const BuildContext& context, const std::string& name, int64_t in, int64_t out) const;
  Var project(Pass& pass, const Projection& p, Var x, DType dtype) const;
  Inputs inputs(Pass& pass, Var x) const;
  /// y [N, d] = o_proj(o_norm(g vh + (1 - g) v)), or of vh + v without a gate.
  Var output(Pass& pass, Var x, const Inputs& in, Var vh) const;

  bool value_norm_, weighted_, is_local_;
  std::string name_, type_;
  int64_t d_, key_width_, value_dim_, gate_width_, chunk_, lookahead_;  // gate_width_: 0 without a gate
  double eps_;
  Projection q_, v_, gate_{}, o_;
};

}  // namespace hebb
