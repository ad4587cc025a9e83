#pragma once
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/fields.h"
#include "core/launch_graph.h"
#include "core/params.h"
#include "optim/schedule.h"

namespace hebb {

/// Parameters whose names match, with settings of their own; what is not set is inherited.
struct GroupConfig {
  std::string match;
  std::optional<double> lr, eps, weight_decay, clip_norm;
  std::vector<double> betas;  // empty: inherited
  bool schedule = true, force_decay = false;
};

/// The `optimizer` section of a run configuration (docs/training.md).
struct OptimizerConfig {
  std::string type = "adamw";
  double lr = 0;
  std::vector<double> betas{0.9, 0.95};
  double eps = 1e-8, weight_decay = 0.1, clip_norm = 1.0;
  bool weight_decay_follows_lr = false;
  std::vector<std::string> no_decay;
  std::vector<GroupConfig> groups;
};
void fields(Fields& f, GroupConfig& config);
void fields(Fields& f, OptimizerConfig& config);

/// Gradient norms before clipping, one per clip set.
struct GradientNorms {
  double global = 0;
  std::vector<std::pair<size_t, double>> groups;  // groups with a clip_norm of their own, by index

  bool finite() const;
};

/// What one step did.
struct StepOutcome {
  double loss = 0;  // 0 where the step was given none
  GradientNorms norms;
  bool applied = false;  // the loss and all norms are finite
};

/// AdamW with parameter groups and clipping (docs/training.md, AdamW) over the trained parameters
/// of a store. Moments and update counts live in the store. Norms, clip factors and whether a step applies are computed
/// and used on the device; the host hears of them in finish().
class Optimizer {
 public:
  /// What applies to one parameter.
  struct Rule {
    Param* param = nullptr;
    int group = -1;  // index in config.groups
    double lr = 0, beta1 = 0, beta2 = 0, eps = 0;
    double weight_decay = 0;  // 0 if exempt
    bool scheduled = true;
    size_t clip_set = 0;  // 0: the global norm
  };

  /// `params` must be allocated for training and, like `config`'s run, outlive the optimizer.
  Optimizer(const OptimizerConfig& config, const Schedule& schedule, ParamStore& params, Arena& arena);

  /// From now on steps that repeat are launched as CUDA graphs.
  void use_graphs() { uses_graphs_ = true; }
  /// Enqueues one update of every parameter that the loss reached, with the gradients scaled to clip_norm. It changes
  /// nothing where a norm is not finite, or the loss: scale [1] f64 times the sum of row_loss [N] f64, both on the
  /// device; or none.
  void step(Stream& stream, int64_t step, const Tensor& row_loss = {}, const Tensor& scale = {});

  /// A step that has been decided elsewhere, for ranks that decide alike (comm/step_record.h).
  struct Decided {
    double loss = 0;
    bool applies = false;
    std::vector<double> norm, clip;  // of each clip set
  };
  /// A run of elements of one parameter, and where its gradient and moments lie. copy: undefined where there is none.
  struct Part {
    size_t rule = 0;
    Tensor p, m, v, grad, copy;
  };
  /// In place of step(): one update of those parts whose parameters are reached.
  void apply(Stream& stream, int64_t step, const Decided& decided, std::span<const Part> parts);
  size_t clip_sets() const { return clip_sets_.size(); }
  double clip_norm(size_t set) const { return clip_sets_[set].clip_norm; }

  /// [1] f64 on the device: 1 if the step applies, else 0.
  Tensor applies() const { return outcome_.tensor().slice(1, {1}); }
  /// Waits for the step, copies `also` to the host with its outcome, and counts the updates if it applied; of states
  /// that were marked as reached, too. Once after every step.
  StepOutcome finish(Stream& stream, const std::vector<HostCopy>& also = {});

  /// The learning rate that step `step` applies outside groups.
  double lr(int64_t step) const { return schedule_(step); }
  const std::vector<Rule>& rules() const { return rules_; }
  /// Indices of groups that no parameter matched first.
  std::vector<size_t> unused_groups() const;

 private:
  struct ClipSet {
    int group = -1;  // -1: the global one
    double clip_norm = 0;
    std::vector<Tensor> pieces;  // contiguous runs of gradients
  };
  void add_piece(ClipSet& set, const Tensor& grad);
  double lr(const Rule& rule, int64_t step) const;
  void upload_rates(Stream& stream, int64_t step);
  void update(Stream& stream, const Part& part);
  void launch(Stream& stream, const Tensor& row_loss, const Tensor& scale);

  OptimizerConfig config_;
  Schedule schedule_;
  std::vector<Rule> rules_;
  std::vector<ClipSet> clip_sets_;
  std::vector<Param*> states_;      // with optimizers of their own
  Buffer partial_;                  // sums of squares of fixed blocks
  Buffer ends_, limits_, outcome_;  // of clip sets: see DecideStep
  Buffer rates_;                    // [rules, kAdamWRates]
  bool has_sets_ = false;           // ends_ and limits_ are written
  bool uses_graphs_ = false;
  std::map<std::vector<bool>, LaunchGraph>
      graphs_;  // by whether there are losses, and which rules' parameters are reached
};

}  // namespace hebb
