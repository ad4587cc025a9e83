// fwpkm: a product-key memory whose table and keys are rewritten while text is read.
#include <algorithm>
#include <cmath>

#include "core/choice.h"
#include "layers/collectors.h"
#include "layers/fast/fwpkm_op.h"
#include "layers/fast/memory_branch.h"
#include "layers/heads_config.h"

namespace hebb {
namespace {

struct FwpkmConfig final : MemoryBranchConfig {
  ProductKeyConfig table{.num_heads = 1, .top_k = 8};
  std::string score = "idw", value_step = "slots";
  KeyUpdate key_update = KeyUpdate::entropy;
  GradThroughUpdate through = GradThroughUpdate::full;
  double idw_eps = 1e-3, value_lr = 1, key_lr = 1;
  bool weight_by_gate = true;

  void fields(Fields& f) override {
    table.fields(f, value_dim);
    chunk_fields(f, "A token's target is the value so many tokens later.");
    f.field("score", score)
        .one_of({"idw", "dot"})
        .help("idw: -ln(idw_eps + distance^2) of query and sub-key; dot: their product.");
    f.field("idw_eps", idw_eps)
        .above(0)
        .help("Smallest squared distance of query and sub-key.")
        .only_with(score == "idw", "score \"idw\"");
    gate_fields(f);
    f.field("weight_by_gate", weight_by_gate).help("Weigh each token's write with its gate.");
    choice(f, "key_update", key_update,
           {{"entropy", KeyUpdate::entropy}, {"memory", KeyUpdate::memory}, {"none", KeyUpdate::none}})
        .help("entropy: keys move to even out their use; memory: to lower the prediction error; none: they stay.");
    f.field("value_lr", value_lr).min(0).help("Rate of the value slots.");
    f.field("key_lr", key_lr).min(0).help("Rate of the keys.").only_with(key_update != KeyUpdate::none, "a key_update");
    f.field("value_step", value_step)
        .one_of({"slots", "unit"})
        .help("slots: the step is multiplied with num_heads top_k, as in the released code; unit: as in the paper.");
    choice(
        f, "grad_through_update", through,
        {{"full", GradThroughUpdate::full}, {"values", GradThroughUpdate::values}, {"none", GradThroughUpdate::none}})
        .help("What the training loss is differentiated through: updates of values and keys, of values, or none.");
    sync_field(f);
    f.require(!weight_by_gate || gate, "weight_by_gate", "false, since gate is false");
  }
  std::unique_ptr<Layer> make(const BuildContext& c) const override;
  StatisticsCollectors statistics(const StatisticsOptions& options) const override {
    return collector_list(slot_windows(options));
  }

  FwpkmOptions options() const {
    const double reads = static_cast<double>(table.num_heads * table.top_k);
    return {.heads = table.num_heads,
            .subkeys = table.num_subkeys,
            .half_dim = table.key_dim / 2,
            .top_k = table.top_k,
            .value_dim = value_dim,
            .chunk = chunk_size,
            .lookahead = lookahead,
            .score = {score == "idw", idw_eps},
            .key_update = key_update,
            .through = through,
            .value_step = value_lr * (value_step == "slots" ? reads : 1.0),
            .key_rate = key_lr};
  }
};

/// x [N, d] -> o_proj(o_norm(mix of the reading and the value)).
class Fwpkm final : public MemoryBranch {
 public:
  Fwpkm(const BuildContext& c, const FwpkmConfig& config)
      : MemoryBranch(c, config, "fwpkm", config.table.width(), config.weight_by_gate),
        idle_parameters_(config.table.idle_slots() * config.value_dim),
        o_(config.options()) {
    const double key_bound = 1.0 / std::sqrt(static_cast<double>(config.table.key_dim));
    keys_ = declare_fast(c, "keys", {o_.heads, 2, o_.subkeys, o_.half_dim}, init::uniform(-key_bound, key_bound));
    values_ = declare_fast(c, "values", {o_.subkeys * o_.subkeys, o_.value_dim},
                           init::normal(1.0 / std::sqrt(static_cast<double>(o_.value_dim))));
  }

  int64_t idle_parameters() const override { return idle_parameters_; }
  int64_t state_bytes(int64_t tokens) const override {
    const int64_t width = o_.heads * 2 * o_.half_dim, table = o_.subkeys * o_.subkeys * o_.value_dim;
    return 4 * (table + o_.subkeys * width + queued(tokens) * (width + o_.value_dim + 1));
  }
  double flops_per_token(int64_t) const override {
    const double h = static_cast<double>(o_.heads), n = static_cast<double>(o_.subkeys),
                 half = static_cast<double>(o_.half_dim), k = static_cast<double>(o_.top_k),
                 dv = static_cast<double>(o_.value_dim);
    const double key_step = o_.key_update == KeyUpdate::none ? 0.0 : 2 * 12 * h * k * half;
    return branch_flops() + 4 * h * n * half + 6 * h * k * dv + key_step;
  }

 private:
  Var read_rows(Pass& pass, Var q, Var v, Var w) override {
    return fwpkm_row(pass, q, v, w, *keys_, *values_, o_, name(), undo_);
  }
  void read_tokens(Stream& stream, Arena& arena, const Tensor& q, const FastChunk& chunk,
                   const Tensor& vh) const override {
    fwpkm_read(stream, arena, o_, q, chunk, *keys_, *values_, vh);
  }
  void update(Stream& stream, const FastQueue& queue, int64_t pairs) const override {
    fwpkm_update(stream, queue.arena(), o_, queue.q(), queue.v(), queue.w(), queue.targets(pairs),
                 {queue.rows(), queue.capacity(), 0, pairs}, *keys_, *values_);
  }

  int64_t idle_parameters_;
  FwpkmOptions o_;
  Param *keys_, *values_;
  std::shared_ptr<FwpkmLog> undo_;  // from the first run of a pass that is recomputed to the second
};

std::unique_ptr<Layer> FwpkmConfig::make(const BuildContext& c) const { return std::make_unique<Fwpkm>(c, *this); }

}  // namespace

std::unique_ptr<LayerConfig> make_fwpkm_config() { return std::make_unique<FwpkmConfig>(); }

}  // namespace hebb
