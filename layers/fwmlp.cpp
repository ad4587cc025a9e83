// fwmlp: a perceptron whose weights are rewritten while text is read.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "layers/fast_queue.h"
#include "layers/memory_branch.h"
#include "layers/model_config.h"
#include "layers/ops/fwmlp.h"

namespace hebb {
namespace {

struct FwmlpConfig final : LayerConfig {
  MemoryBranchConfig branch;
  int64_t fast_dim = 512, chunk_size = 512, lookahead = 1;
  std::string target = "mean", through = "full", sync = "global";
  double lr = 0.1, grad_clip = 0;

  FwmlpConfig() { branch.key_width = 512; }

  void fields(Fields& f) override {
    f.field("key_dim", branch.key_width).min(1).help("Width of a query.").scales(scaling::channels());
    f.field("value_dim", branch.value_dim).min(1).help("Width of a value.").scales(scaling::channels());
    f.field("fast_dim", fast_dim).min(1).help("Hidden width of the fast perceptron.").scales(scaling::channels());
    f.field("chunk_size", chunk_size)
        .min(1)
        .unit("tokens")
        .help("Tokens of a sequence per update.")
        .scales(scaling::window);
    f.field("lookahead", lookahead).min(0).unit("tokens").help("How many tokens later the target ends.");
    f.field("target", target)
        .one_of({"mean", "next"})
        .help(
            "mean: of the values from the token to lookahead later, as in the released code; next: the last of them.");
    f.field("lr", lr).min(0).help("Rate of the fast weights.");
    f.field("grad_clip", grad_clip).min(0).help("Above 0: largest absolute element of a fast gradient.");
    f.field("value_norm", branch.value_norm).help("Give every value mean 0 and standard deviation 1.");
    f.field("gate", branch.gate).help("Mix reading and value with a gate per token; without it they are added.");
    f.field("gate_width", branch.gate_width)
        .min(1)
        .help("Outputs of the gate's projection, averaged before the sigmoid.")
        .only_with(branch.gate, "gate");
    f.field("grad_through_update", through)
        .one_of({"full", "none"})
        .help("Whether the training loss is differentiated through the updates.");
    f.field("sync", sync)
        .one_of({"global", "local"})
        .help(
            "Several ranks: global has one memory for the rows of all, and one lane a rank; local, one for each lane.");
    if (f.reading()) {
      f.require(lookahead < chunk_size, "lookahead", fmt::format("less than chunk_size ({:d})", chunk_size));
      f.require(!branch.value_norm || branch.value_dim > 1, "value_dim", "at least 2 with value_norm");
    }
  }
  bool learns_per_micro_batch() const override { return true; }
  std::unique_ptr<Layer> make(const BuildContext& c) const override;

  FwmlpOptions options() const {
    return {{branch.key_width, fast_dim, branch.value_dim},
            chunk_size,
            lookahead,
            target == "mean",
            lr,
            grad_clip,
            through == "full"};
  }
};

/// x [N, d] -> o_proj(o_norm(mix of the perceptron's output and the value)).
class Fwmlp final : public Layer {
 public:
  Fwmlp(const BuildContext& c, const FwmlpConfig& config)
      : is_local_(config.sync == "local"), name_(c.name), o_(config.options()), branch_(c, config.branch) {
    const FwmlpSizes& s = o_.sizes;
    const Init in = init::normal(1.0 / std::sqrt(static_cast<double>(s.key_dim))), zero = init::constant(0);
    const auto declare = [&](const char* name, Shape shape, const Init& init) {
      return &c.declare(name, shape, init, ParamKind::fast);
    };
    params_ = {declare("w_up", {s.hidden, s.key_dim}, in),
               declare("w_gate", {s.hidden, s.key_dim}, in),
               declare("b_up", {s.hidden}, zero),
               declare("b_gate", {s.hidden}, zero),
               declare("w_down", {s.value_dim, s.hidden}, init::normal(1.0 / std::sqrt(static_cast<double>(s.hidden)))),
               declare("b_down", {s.value_dim}, zero)};
    for (Param* p : params_) { p->spec.has_all_rows = !is_local_; }
  }

  Var forward(Pass& pass, Var x, LayerState* state) override {
    const int64_t chunk = fast_chunk(pass, name_, o_.chunk, o_.lookahead);
    const MemoryBranch::Inputs in = branch_.inputs(pass, x);
    if (in.g) { add_gate_statistics(pass, name_, pass.tape.value(in.g)); }
    if (state == nullptr || pass.fast.update == FastUpdate::per_sequence) {
      const auto row = [&](Pass& p, const std::vector<Var>& qv) {
        return fwmlp_row(p, qv[0], qv[1], params_, o_, undo_);
      };
      const std::vector<Var> qv{in.q, in.v};
      return branch_.output(pass, x, in, is_local_ ? row(pass, qv) : with_all_rows(pass, qv, row));
    }
    return branch_.output(pass, x, in, stream(pass, in, chunk, static_cast<FastQueue&>(*state)));
  }

  std::unique_ptr<LayerState> make_state(Arena& arena, int64_t rows, DType dtype) const override {
    return std::make_unique<FastQueue>(
        arena,
        FastQueueLayout{.rows = rows,
                        .q_width = o_.sizes.key_dim,
                        .v_width = o_.sizes.value_dim,
                        .lookahead = o_.lookahead,
                        .dtype = sum_dtype(dtype)},
        [this](Stream& stream, const FastQueue& queue, int64_t pairs) { update(stream, queue, pairs); });
  }
  std::string needs_all_rows() const override {
    return is_local_ ? ""
                     : "(fwmlp, sync \"global\") has one memory for all rows; with \"local\" each lane has its own";
  }

  int64_t state_bytes(int64_t tokens) const override {
    return 4 * (o_.sizes.total() + std::min(tokens, o_.chunk + o_.lookahead) * (o_.sizes.key_dim + o_.sizes.value_dim));
  }
  double flops_per_token(int64_t) const override {
    const double in = 2.0 * static_cast<double>(o_.sizes.hidden * o_.sizes.key_dim),
                 out = static_cast<double>(o_.sizes.hidden * o_.sizes.value_dim);
    return branch_.flops_per_token() + 6 * (in + out);  // reading 2, update 4
  }

 private:
  Var stream(Pass& pass, const MemoryBranch::Inputs& in, int64_t chunk, FastQueue& queue) {
    Tape& tape = pass.tape;
    const Var vh = tape.output({pass.tokens(), o_.sizes.value_dim}, tape.dtype(in.q), "memory reading");
    const auto read = [&](int64_t first, int64_t count) {
      fwmlp_read(pass.stream(), tape.arena(), o_, tape.value(in.q), {pass.batch(), pass.length(), first, count},
                 params_, tape.value(vh));
    };
    queue.advance(pass, chunk, tape.value(in.q), tape.value(in.v), {}, read);
    return vh;
  }
  void update(Stream& stream, const FastQueue& queue, int64_t pairs) const {
    fwmlp_update(stream, queue.arena(), o_, queue.q(), queue.v(), queue.targets(pairs),
                 {queue.rows(), queue.capacity(), 0, pairs}, params_);
  }

  bool is_local_;
  std::string name_;
  FwmlpOptions o_;
  MemoryBranch branch_;
  FwmlpParams params_;
  std::shared_ptr<FwmlpLog> undo_;  // from the first run of a pass that is recomputed to the second
};

std::unique_ptr<Layer> FwmlpConfig::make(const BuildContext& c) const { return std::make_unique<Fwmlp>(c, *this); }

}  // namespace

std::unique_ptr<LayerConfig> make_fwmlp_config() { return std::make_unique<FwmlpConfig>(); }

}  // namespace hebb
