#include "optim/optimizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <regex>

#include "kernels/adamw/adamw.h"

namespace hebb {
namespace {

void check_regex(const Fields& f, const std::string& name, const std::string& pattern) {
  try {
    std::regex compiled(pattern, std::regex::ECMAScript);
  } catch (const std::regex_error&) {
    f.fail(name, "\"" + pattern + "\"", "a regular expression in ECMAScript syntax");
  }
}

int64_t blocks_of(const Tensor& t) { return (t.numel() + kSumSquaresBlock - 1) / kSumSquaresBlock; }

}  // namespace

void fields(Fields& f, GroupConfig& c) {
  f.field("match", c.match)
      .required()
      .help(
          "Regular expression (ECMAScript), searched anywhere in a parameter's name; the first group that matches "
          "wins.");
  f.field("lr", c.lr).above(0).help("Peak learning rate.");
  f.field("betas", c.betas).min(0).below(1).help("Decay rates of the moments; empty: inherited.");
  f.field("eps", c.eps).above(0).help("Epsilon outside the root.");
  f.field("weight_decay", c.weight_decay).min(0).help("Weight decay of parameters that decay.");
  f.field("schedule", c.schedule).help("false: the learning rate stays constant.");
  f.field("clip_norm", c.clip_norm).min(0).help("Clip these parameters by their own norm; 0 = not at all.");
  f.field("force_decay", c.force_decay).help("Parameters that are exempt from weight decay decay too.");
  if (f.reading()) {
    f.require(c.betas.empty() || c.betas.size() == 2, "betas", "two numbers");
    check_regex(f, "match", c.match);
  }
}

void fields(Fields& f, OptimizerConfig& c) {
  f.field("type", c.type).one_of({"adamw"}).help("Kind of optimizer.");
  f.field("lr", c.lr).required().above(0).help("Peak learning rate.");
  f.field("betas", c.betas).size(2).min(0).below(1).help("Decay rates of the two moments.");
  f.field("eps", c.eps).above(0).help("Epsilon, outside the root and after bias correction.");
  f.field("weight_decay", c.weight_decay).min(0).help("Decoupled weight decay of matrices.");
  f.field("clip_norm", c.clip_norm).min(0).help("Limit of the global gradient norm; 0 = off.");
  f.field("weight_decay_follows_lr", c.weight_decay_follows_lr).help("Weight decay is scaled as the learning rate is.");
  f.field("no_decay", c.no_decay).help("Regular expressions (ECMAScript) of names that do not decay.");
  f.list("groups", c.groups).help("Parameters with settings of their own.");
  if (f.reading()) {
    for (size_t i = 0; i < c.no_decay.size(); ++i) { check_regex(f, fmt::format("no_decay.{:d}", i), c.no_decay[i]); }
  }
}

bool GradientNorms::finite() const {
  return std::isfinite(global) &&
         std::all_of(groups.begin(), groups.end(), [](const auto& g) { return std::isfinite(g.second); });
}

Optimizer::Optimizer(const OptimizerConfig& config, const Schedule& schedule, ParamStore& params, Arena& arena)
    : config_(config), schedule_(schedule), clip_sets_{{-1, config.clip_norm, {}}} {
  std::vector<std::regex> no_decay, groups;
  for (const std::string& pattern : config_.no_decay) { no_decay.emplace_back(pattern, std::regex::ECMAScript); }
  std::vector<size_t> set_of_group;
  for (size_t i = 0; i < config_.groups.size(); ++i) {
    groups.emplace_back(config_.groups[i].match, std::regex::ECMAScript);
    set_of_group.push_back(0);
    if (config_.groups[i].clip_norm) {
      set_of_group.back() = clip_sets_.size();
      clip_sets_.push_back({static_cast<int>(i), *config_.groups[i].clip_norm, {}});
    }
  }
  for (const auto& p : params.all()) {
    if (p->spec.kind == ParamKind::state) { states_.push_back(p.get()); }
    if (!p->trained()) { continue; }
    const auto matches = [&](const std::regex& pattern) { return std::regex_search(p->name(), pattern); };
    const bool exempt = !p->decays() || std::any_of(no_decay.begin(), no_decay.end(), matches);
    Rule rule{.param = p.get(),
              .lr = config_.lr,
              .beta1 = config_.betas[0],
              .beta2 = config_.betas[1],
              .eps = config_.eps,
              .weight_decay = exempt ? 0 : config_.weight_decay};
    if (const auto it = std::find_if(groups.begin(), groups.end(), matches); it != groups.end()) {
      const size_t i = static_cast<size_t>(it - groups.begin());
      const GroupConfig& group = config_.groups[i];
      rule.group = static_cast<int>(i);
      rule.lr = group.lr.value_or(rule.lr);
      rule.beta1 = group.betas.empty() ? rule.beta1 : group.betas[0];
      rule.beta2 = group.betas.empty() ? rule.beta2 : group.betas[1];
      rule.eps = group.eps.value_or(rule.eps);
      rule.weight_decay = exempt && !group.force_decay ? 0 : group.weight_decay.value_or(config_.weight_decay);
      rule.scheduled = group.schedule;
      rule.clip_set = set_of_group[i];
    }
    if (p->grad.defined()) { add_piece(clip_sets_[rule.clip_set], p->grad); }
    rules_.push_back(rule);
  }
  int64_t blocks = 0;
  for (const ClipSet& set : clip_sets_) {
    for (const Tensor& piece : set.pieces) { blocks += blocks_of(piece); }
  }
  const auto sets = static_cast<int64_t>(clip_sets_.size());
  partial_ = Buffer(arena, {std::max<int64_t>(blocks, 1)}, DType::f64, "sums of squares");
  ends_ = Buffer(arena, {sets}, DType::i64, "clip sets");
  limits_ = Buffer(arena, {sets}, DType::f64, "clip sets");
  outcome_ = Buffer(arena, {step_outcome_size(sets)}, DType::f64, "outcome of a step");
  rates_ = Buffer(arena, {std::max<int64_t>(static_cast<int64_t>(rules_.size()), 1), kAdamWRates}, DType::f64,
                  "rates of a step");
}

void Optimizer::add_piece(ClipSet& set, const Tensor& grad) {
  // Gradients lie one after another with padding that stays zero: neighbours of one set are summed
  // as one tensor.
  constexpr int64_t kPaddingBytes = 64;
  const auto begin = reinterpret_cast<uintptr_t>(grad.data);
  if (!set.pieces.empty()) {
    Tensor& last = set.pieces.back();
    const auto last_begin = reinterpret_cast<uintptr_t>(last.data);
    const uintptr_t last_end = last_begin + static_cast<uintptr_t>(last.bytes());
    if (begin >= last_end && begin - last_end < kPaddingBytes * 2) {
      const auto bytes = static_cast<int64_t>(begin - last_begin) + grad.bytes();
      last.shape = {bytes / dtype_bytes(grad.dtype)};
      return;
    }
  }
  set.pieces.push_back(grad);
}

double Optimizer::lr(const Rule& rule, int64_t step) const {
  return rule.scheduled ? schedule_(step) * (rule.lr / config_.lr) : rule.lr;
}

/// What the host knows of a step, to where kernels read it.
void Optimizer::upload_rates(Stream& stream, int64_t step) {
  if (!has_sets_) {
    std::vector<int64_t> ends;
    std::vector<double> limits;
    for (const ClipSet& set : clip_sets_) {
      ends.push_back(ends.empty() ? 0 : ends.back());
      for (const Tensor& piece : set.pieces) { ends.back() += blocks_of(piece); }
      limits.push_back(set.clip_norm);
    }
    copy_to_device(stream, ends_, ends.data());
    copy_to_device(stream, limits_, limits.data());
    has_sets_ = true;
  }
  std::vector<double> rates(static_cast<size_t>(rates_.tensor().numel()));
  for (size_t i = 0; i < rules_.size(); ++i) {
    const Rule& rule = rules_[i];
    const auto t = static_cast<double>(rule.param->updates + 1);
    const double rate = lr(rule, step);
    const double decay = rule.weight_decay * (config_.weight_decay_follows_lr ? rate / rule.lr : 1.0);
    rates[kAdamWRates * i] = 1 - rate * decay;
    rates[kAdamWRates * i + 1] = rate / (1 - std::pow(rule.beta1, t));
    rates[kAdamWRates * i + 2] = 1 / (1 - std::pow(rule.beta2, t));
  }
  copy_to_device(stream, rates_, rates.data());
}

/// The same launches in every step that reaches the same parameters.
void Optimizer::launch(Stream& stream, const Tensor& row_loss, const Tensor& scale) {
  int64_t at = 0;
  for (const ClipSet& set : clip_sets_) {
    for (const Tensor& piece : set.pieces) {
      run(stream, SumSquares{partial_.tensor().slice(at, {blocks_of(piece)}), piece});
      at += blocks_of(piece);
    }
  }
  run(stream, DecideStep{.outcome = outcome_,
                         .partial = partial_,
                         .ends = ends_,
                         .limits = limits_,
                         .row_loss = row_loss,
                         .scale = scale});
  for (size_t i = 0; i < rules_.size(); ++i) {
    const Param& p = *rules_[i].param;
    update(stream, {.rule = i, .p = p.value, .m = p.m, .v = p.v, .grad = p.grad, .copy = p.copy});
  }
}

void Optimizer::update(Stream& stream, const Part& part) {
  const Rule& rule = rules_[part.rule];
  if (!rule.param->reached) { return; }
  const auto clip = static_cast<int64_t>(step_outcome_size(static_cast<int64_t>(rule.clip_set)) + 1);
  run(stream, AdamW{.p = part.p,
                    .m = part.m,
                    .v = part.v,
                    .grad = part.grad,
                    .beta1 = rule.beta1,
                    .beta2 = rule.beta2,
                    .eps = rule.eps,
                    .rates = rates_.tensor().slice(kAdamWRates * static_cast<int64_t>(part.rule), {kAdamWRates}),
                    .clip = outcome_.tensor().slice(clip, {1}),
                    .applies = applies(),
                    .copy = part.copy});
}

void Optimizer::apply(Stream& stream, int64_t step, const Decided& decided, std::span<const Part> parts) {
  HEBB_ASSERT(decided.norm.size() == clip_sets_.size() && decided.clip.size() == clip_sets_.size());
  std::vector<double> outcome{decided.loss, decided.applies ? 1.0 : 0.0};
  for (size_t set = 0; set < clip_sets_.size(); ++set) {
    outcome.push_back(decided.norm[set]);
    outcome.push_back(decided.clip[set]);
  }
  copy_to_device(stream, outcome_, outcome.data());
  upload_rates(stream, step);
  for (const Part& part : parts) { update(stream, part); }
}

void Optimizer::step(Stream& stream, int64_t step, const Tensor& row_loss, const Tensor& scale) {
  constexpr size_t kMostGraphs = 4;  // each holds memory of the device; steps of further kinds are launched
  upload_rates(stream, step);
  std::vector<bool> kind{row_loss.numel() > 0};
  for (const Rule& rule : rules_) { kind.push_back(rule.param->reached); }
  if (uses_graphs_ && (graphs_.size() < kMostGraphs || graphs_.count(kind) > 0)) {
    graphs_[kind].run(stream, [&] { launch(stream, row_loss, scale); });
  } else {
    launch(stream, row_loss, scale);
  }
}

StepOutcome Optimizer::finish(Stream& stream, const std::vector<HostCopy>& also) {
  std::vector<double> values(static_cast<size_t>(outcome_.tensor().numel()));
  std::vector<HostCopy> copies = also;
  copies.push_back({values.data(), outcome_});
  copy_to_host(stream, copies);
  StepOutcome outcome;
  outcome.loss = values[0];
  outcome.applied = values[1] != 0;
  for (size_t i = 0; i < clip_sets_.size(); ++i) {
    const double norm = values[static_cast<size_t>(step_outcome_size(static_cast<int64_t>(i)))];
    if (clip_sets_[i].group < 0) {
      outcome.norms.global = norm;
    } else {
      outcome.norms.groups.emplace_back(static_cast<size_t>(clip_sets_[i].group), norm);
    }
  }
  if (outcome.applied) {
    for (const Rule& rule : rules_) { rule.param->updates += rule.param->reached ? 1 : 0; }
    for (Param* p : states_) { p->updates += p->reached ? 1 : 0; }
  }
  return outcome;
}

std::vector<size_t> Optimizer::unused_groups() const {
  std::vector<size_t> unused;
  for (size_t i = 0; i < config_.groups.size(); ++i) {
    if (std::none_of(rules_.begin(), rules_.end(), [&](const Rule& r) { return r.group == static_cast<int>(i); })) {
      unused.push_back(i);
    }
  }
  return unused;
}

}  // namespace hebb
