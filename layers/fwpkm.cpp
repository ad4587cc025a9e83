// fwpkm: a product-key memory whose table and keys are rewritten while text is read.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "layers/collectors.h"
#include "layers/fast_queue.h"
#include "layers/memory_branch.h"
#include "layers/model_config.h"
#include "layers/ops/fwpkm.h"

namespace hebb {
namespace {

struct FwpkmConfig final : LayerConfig {
  int64_t num_subkeys = 512, num_heads = 1, key_dim = 512, top_k = 8, chunk_size = 512, lookahead = 1;
  MemoryBranchConfig branch;
  std::string score = "idw", key_update = "entropy", value_step = "slots", through = "full", sync = "global";
  double idw_eps = 1e-3, value_lr = 1, key_lr = 1;
  bool weight_by_gate = true;

  void fields(Fields& f) override {
    f.field("num_subkeys", num_subkeys)
        .min(2)
        .max(46340)
        .help("Sub-keys n per codebook; the table has n^2 slots.")
        .scales(scaling::subkeys);
    f.field("key_dim", key_dim).min(2).help("Width of a query, both halves.").scales(scaling::channels());
    f.field("value_dim", branch.value_dim).min(1).help("Width of a value row.").scales(scaling::channels());
    f.field("num_heads", num_heads).min(1).help("Heads; they share the values, each has its own keys.");
    f.field("top_k", top_k).min(1).help("Slots that a head reads per token.").scales(scaling::slots_per_token);
    f.field("chunk_size", chunk_size)
        .min(1)
        .unit("tokens")
        .help("Tokens of a sequence per update.")
        .scales(scaling::window);
    f.field("lookahead", lookahead).min(0).unit("tokens").help("A token's target is the value so many tokens later.");
    f.field("score", score)
        .one_of({"idw", "dot"})
        .help("idw: -ln(idw_eps + distance^2) of query and sub-key; dot: their product.");
    f.field("idw_eps", idw_eps)
        .above(0)
        .help("Smallest squared distance of query and sub-key.")
        .only_with(score == "idw", "score \"idw\"");
    f.field("value_norm", branch.value_norm).help("Give every value mean 0 and standard deviation 1.");
    f.field("gate", branch.gate).help("Mix reading and value with a gate per token; without it they are added.");
    f.field("gate_width", branch.gate_width)
        .min(1)
        .help("Outputs of the gate's projection, averaged before the sigmoid.")
        .only_with(branch.gate, "gate");
    f.field("weight_by_gate", weight_by_gate).help("Weigh each token's write with its gate.");
    f.field("key_update", key_update)
        .one_of({"entropy", "memory", "none"})
        .help("entropy: keys move to even out their use; memory: to lower the prediction error; none: they stay.");
    f.field("value_lr", value_lr).min(0).help("Rate of the value slots.");
    f.field("key_lr", key_lr).min(0).help("Rate of the keys.").only_with(key_update != "none", "a key_update");
    f.field("value_step", value_step)
        .one_of({"slots", "unit"})
        .help("slots: the step is multiplied with num_heads top_k, as in the released code; unit: as in the paper.");
    f.field("grad_through_update", through)
        .one_of({"full", "values", "none"})
        .help("What the training loss is differentiated through: updates of values and keys, of values, or none.");
    f.field("sync", sync)
        .one_of({"global", "local"})
        .help(
            "Several ranks: global has one memory for the rows of all, and one lane a rank; local, one for each lane.");
    if (f.reading()) {
      f.require(key_dim % 2 == 0, "key_dim", "an even integer");
      f.require(top_k <= num_subkeys, "top_k", fmt::format("at most num_subkeys ({:d})", num_subkeys));
      f.require(lookahead < chunk_size, "lookahead", fmt::format("less than chunk_size ({:d})", chunk_size));
      f.require(!weight_by_gate || branch.gate, "weight_by_gate", "false, since gate is false");
      f.require(!branch.value_norm || branch.value_dim > 1, "value_dim", "at least 2 with value_norm");
    }
  }
  bool learns_per_micro_batch() const override { return true; }
  std::unique_ptr<Layer> make(const BuildContext& c) const override;
  StatisticsCollectors statistics(const StatisticsOptions& options) const override {
    return collector_list(slot_windows(options));
  }

  MemoryBranchConfig branch_config() const {
    MemoryBranchConfig b = branch;
    b.key_width = num_heads * key_dim;
    return b;
  }
  FwpkmOptions options() const {
    const double reads = static_cast<double>(num_heads * top_k);
    return {num_heads,
            num_subkeys,
            key_dim / 2,
            top_k,
            branch.value_dim,
            chunk_size,
            lookahead,
            {score == "idw", idw_eps},
            key_update == "entropy"  ? KeyUpdate::entropy
            : key_update == "memory" ? KeyUpdate::memory
                                     : KeyUpdate::none,
            through == "full"     ? GradThroughUpdate::full
            : through == "values" ? GradThroughUpdate::values
                                  : GradThroughUpdate::none,
            value_lr * (value_step == "slots" ? reads : 1.0),
            key_lr};
  }
};

/// x [N, d] -> o_proj(o_norm(mix of the reading and the value)).
class Fwpkm final : public Layer {
 public:
  Fwpkm(const BuildContext& c, const FwpkmConfig& config)
      : weighted_(config.weight_by_gate),
        is_local_(config.sync == "local"),
        name_(c.name),
        o_(config.options()),
        branch_(c, config.branch_config()) {
    const double key_bound = 1.0 / std::sqrt(static_cast<double>(config.key_dim));
    keys_ = &c.declare("keys", {o_.heads, 2, o_.subkeys, o_.half_dim}, init::uniform(-key_bound, key_bound),
                       ParamKind::fast);
    values_ = &c.declare("values", {o_.subkeys * o_.subkeys, o_.value_dim},
                         init::normal(1.0 / std::sqrt(static_cast<double>(o_.value_dim))), ParamKind::fast);
    for (Param* p : {keys_, values_}) { p->spec.has_all_rows = !is_local_; }
  }

  Var forward(Pass& pass, Var x, LayerState* state) override {
    const int64_t chunk = fast_chunk(pass, name_, o_.chunk, o_.lookahead);
    const MemoryBranch::Inputs in = branch_.inputs(pass, x);
    if (in.g) { add_gate_statistics(pass, name_, pass.tape.value(in.g)); }
    const Var w = weighted_ ? in.g : Var{};
    if (state == nullptr || pass.fast.update == FastUpdate::per_sequence) {
      const auto row = [&](Pass& p, const std::vector<Var>& qvw) {
        return fwpkm_row(p, qvw[0], qvw[1], qvw[2], *keys_, *values_, o_, name_, undo_);
      };
      const std::vector<Var> qvw{in.q, in.v, w};
      return branch_.output(pass, x, in, is_local_ ? row(pass, qvw) : with_all_rows(pass, qvw, row));
    }
    return branch_.output(pass, x, in, stream(pass, in, w, chunk, static_cast<FastQueue&>(*state)));
  }

  std::unique_ptr<LayerState> make_state(Arena& arena, int64_t rows, DType dtype) const override {
    return std::make_unique<FastQueue>(
        arena,
        FastQueueLayout{.rows = rows,
                        .q_width = o_.heads * 2 * o_.half_dim,
                        .v_width = o_.value_dim,
                        .lookahead = o_.lookahead,
                        .dtype = sum_dtype(dtype),
                        .weighted = weighted_},
        [this](Stream& stream, const FastQueue& queue, int64_t pairs) { update(stream, queue, pairs); });
  }
  std::string needs_all_rows() const override {
    return is_local_ ? ""
                     : "(fwpkm, sync \"global\") has one memory for all rows; with \"local\" each lane has its own";
  }

  int64_t idle_parameters() const override {
    return std::max<int64_t>(0, o_.subkeys * o_.subkeys - o_.heads * o_.top_k) * o_.value_dim;
  }
  int64_t state_bytes(int64_t tokens) const override {
    const int64_t width = o_.heads * 2 * o_.half_dim, queued = std::min(tokens, o_.chunk + o_.lookahead);
    return 4 * (o_.subkeys * o_.subkeys * o_.value_dim + o_.subkeys * width + queued * (width + o_.value_dim + 1));
  }
  double flops_per_token(int64_t) const override {
    const double h = static_cast<double>(o_.heads), n = static_cast<double>(o_.subkeys),
                 half = static_cast<double>(o_.half_dim), k = static_cast<double>(o_.top_k),
                 dv = static_cast<double>(o_.value_dim);
    const double key_step = o_.key_update == KeyUpdate::none ? 0.0 : 2 * 12 * h * k * half;
    return branch_.flops_per_token() + 4 * h * n * half + 6 * h * k * dv + key_step;
  }

 private:
  Var stream(Pass& pass, const MemoryBranch::Inputs& in, Var w, int64_t chunk, FastQueue& queue) {
    Tape& tape = pass.tape;
    const Var vh = tape.output({pass.tokens(), o_.value_dim}, tape.dtype(in.q), "memory reading");
    const Tensor q = tape.value(in.q);
    const auto read = [&](int64_t first, int64_t count) {
      fwpkm_read(pass.stream(), tape.arena(), o_, q, {pass.batch(), pass.length(), first, count}, *keys_, *values_,
                 tape.value(vh));
    };
    queue.advance(pass, chunk, q, tape.value(in.v), tape.value_or_none(w), read);
    return vh;
  }
  void update(Stream& stream, const FastQueue& queue, int64_t pairs) const {
    fwpkm_update(stream, queue.arena(), o_, queue.q(), queue.v(), queue.w(), queue.targets(pairs),
                 {queue.rows(), queue.capacity(), 0, pairs}, *keys_, *values_);
  }

  bool weighted_, is_local_;
  std::string name_;
  FwpkmOptions o_;
  MemoryBranch branch_;
  Param *keys_, *values_;
  std::shared_ptr<FwpkmLog> undo_;  // from the first run of a pass that is recomputed to the second
};

std::unique_ptr<Layer> FwpkmConfig::make(const BuildContext& c) const { return std::make_unique<Fwpkm>(c, *this); }

}  // namespace

std::unique_ptr<LayerConfig> make_fwpkm_config() { return std::make_unique<FwpkmConfig>(); }

}  // namespace hebb
