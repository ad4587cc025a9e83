// fwmlp: a perceptron whose weights are rewritten while text is read.
#include <cmath>

#include "layers/fast/fwmlp_op.h"
#include "layers/fast/memory_branch.h"
#include "layers/size_field.h"

namespace hebb {
namespace {

struct FwmlpConfig final : MemoryBranchConfig {
  int64_t key_dim = 512, fast_dim = 512;
  std::string target = "mean", through = "full";
  double lr = 0.1, grad_clip = 0;

  void fields(Fields& f) override {
    size_field(f, "key_dim", key_dim, scaling::channels(), "Width of a query.");
    size_field(f, "value_dim", value_dim, scaling::channels(), "Width of a value.");
    size_field(f, "fast_dim", fast_dim, scaling::channels(), "Hidden width of the fast perceptron.");
    chunk_fields(f, "How many tokens later the target ends.");
    f.field("target", target)
        .one_of({"mean", "next"})
        .help(
            "mean: of the values from the token to lookahead later, as in the released code; next: the last of them.");
    f.field("lr", lr).min(0).help("Rate of the fast weights.");
    f.field("grad_clip", grad_clip).min(0).help("Above 0: largest absolute element of a fast gradient.");
    gate_fields(f);
    f.field("grad_through_update", through)
        .one_of({"full", "none"})
        .help("Whether the training loss is differentiated through the updates.");
    sync_field(f);
  }
  std::unique_ptr<Layer> make(const BuildContext& c) const override;

  FwmlpOptions options() const {
    return {.sizes = {key_dim, fast_dim, value_dim},
            .chunk = chunk_size,
            .lookahead = lookahead,
            .mean = target == "mean",
            .rate = lr,
            .clip = grad_clip,
            .through = through == "full"};
  }
};

/// x [N, d] -> o_proj(o_norm(mix of the perceptron's output and the value)).
class Fwmlp final : public MemoryBranch {
 public:
  Fwmlp(const BuildContext& c, const FwmlpConfig& config)
      : MemoryBranch(c, config, "fwmlp", config.key_dim, false), o_(config.options()) {
    const FwmlpSizes& s = o_.sizes;
    const Init in = init::normal(1.0 / std::sqrt(static_cast<double>(s.key_dim))),
               out = init::normal(1.0 / std::sqrt(static_cast<double>(s.hidden))), zero = init::constant(0);
    params_ = {declare_fast(c, "w_up", {s.hidden, s.key_dim}, in),
               declare_fast(c, "w_gate", {s.hidden, s.key_dim}, in),
               declare_fast(c, "b_up", {s.hidden}, zero),
               declare_fast(c, "b_gate", {s.hidden}, zero),
               declare_fast(c, "w_down", {s.value_dim, s.hidden}, out),
               declare_fast(c, "b_down", {s.value_dim}, zero)};
  }

  int64_t state_bytes(int64_t tokens) const override {
    return 4 * (o_.sizes.total() + queued(tokens) * (o_.sizes.key_dim + o_.sizes.value_dim));
  }
  double flops_per_token(int64_t) const override {
    const double in = 2.0 * static_cast<double>(o_.sizes.hidden * o_.sizes.key_dim),
                 out = static_cast<double>(o_.sizes.hidden * o_.sizes.value_dim);
    return branch_flops() + 6 * (in + out);  // reading 2, update 4
  }

 private:
  Var read_rows(Pass& pass, Var q, Var v, Var) override { return fwmlp_row(pass, q, v, params_, o_, undo_); }
  void read_tokens(Stream& stream, Arena& arena, const Tensor& q, const FastChunk& chunk,
                   const Tensor& vh) const override {
    fwmlp_read(stream, arena, o_, q, chunk, params_, vh);
  }
  void update(Stream& stream, const FastQueue& queue, int64_t pairs) const override {
    fwmlp_update(stream, queue.arena(), o_, queue.q(), queue.v(), queue.targets(pairs),
                 {queue.rows(), queue.capacity(), 0, pairs}, params_);
  }

  FwmlpOptions o_;
  FwmlpParams params_;
  std::shared_ptr<FwmlpLog> undo_;  // from the first run of a pass that is recomputed to the second
};

std::unique_ptr<Layer> FwmlpConfig::make(const BuildContext& c) const { return std::make_unique<Fwmlp>(c, *this); }

}  // namespace

std::unique_ptr<LayerConfig> make_fwmlp_config() { return std::make_unique<FwmlpConfig>(); }

}  // namespace hebb
