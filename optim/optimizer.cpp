#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>

#include "kernels/adamw.h"

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
    for (size_t i = 0; i < c.no_decay.size(); ++i) {
      check_regex(f, "no_decay." + std::to_string(i), c.no_decay[i]);
    }
  }
}

bool GradientNorms::finite() const {
  return std::isfinite(global) &&
         std::all_of(groups.begin(), groups.end(), [](const auto& g) { return std::isfinite(g.second); });
}

Optimizer::Optimizer(const OptimizerConfig& config, const Schedule& schedule, ParamStore& params, Arena& arena)
    : config_(config), schedule_(schedule), clip_sets_{{-1, config.clip_norm, {}}} {
  std::vector<std::regex> no_decay, groups;
  for (const std::string& pattern : config_.no_decay) {
    no_decay.emplace_back(pattern, std::regex::ECMAScript);
  }
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
    if (!p->trained()) {
      continue;
    }
    const auto matches = [&](const std::regex& pattern) { return std::regex_search(p->name(), pattern); };
    const bool exempt = !p->decays() || std::any_of(no_decay.begin(), no_decay.end(), matches);
    Rule rule{p.get(), -1, config_.lr, config_.betas[0], config_.betas[1], config_.eps,
              exempt ? 0 : config_.weight_decay, true, 0};
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
    add_piece(clip_sets_[rule.clip_set], p->grad);
    rules_.push_back(rule);
  }
  int64_t blocks = 0;
  for (const ClipSet& set : clip_sets_) {
    for (const Tensor& piece : set.pieces) {
      blocks += blocks_of(piece);
    }
  }
  partial_ = Buffer(arena, {std::max<int64_t>(blocks, 1)}, DType::f64, "sums of squares");
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

GradientNorms Optimizer::norms(Stream& stream) {
  int64_t at = 0;
  for (const ClipSet& set : clip_sets_) {
    for (const Tensor& piece : set.pieces) {
      run(stream, SumSquares{partial_.tensor().slice(at, {blocks_of(piece)}), piece});
      at += blocks_of(piece);
    }
  }
  std::vector<double> partial(static_cast<size_t>(partial_.tensor().numel()));
  copy_to_host(stream, partial.data(), partial_);
  GradientNorms norms;
  auto next = partial.begin();
  for (const ClipSet& set : clip_sets_) {
    double sum = 0;
    for (const Tensor& piece : set.pieces) {
      for (int64_t i = 0; i < blocks_of(piece); ++i) {
        sum += *next++;
      }
    }
    if (set.group < 0) {
      norms.global = std::sqrt(sum);
    } else {
      norms.groups.emplace_back(static_cast<size_t>(set.group), std::sqrt(sum));
    }
  }
  return norms;
}

double Optimizer::lr(const Rule& rule, int64_t step) const {
  return rule.scheduled ? schedule_(step) * (rule.lr / config_.lr) : rule.lr;
}

void Optimizer::step(Stream& stream, const GradientNorms& norms, int64_t step) {
  std::vector<double> clip;
  for (size_t i = 0; i < clip_sets_.size(); ++i) {
    const double norm = i == 0 ? norms.global : norms.groups[i - 1].second;
    clip.push_back(clip_sets_[i].clip_norm > 0 ? std::min(1.0, clip_sets_[i].clip_norm / (norm + 1e-6)) : 1.0);
  }
  for (const Rule& rule : rules_) {
    Param& p = *rule.param;
    if (!p.reached) {
      continue;
    }
    const auto t = static_cast<double>(++p.updates);
    const double rate = lr(rule, step);
    const double decay = rule.weight_decay * (config_.weight_decay_follows_lr ? rate / rule.lr : 1.0);
    run(stream, AdamW{p.value, p.m, p.v, p.grad, rate, rule.beta1, rule.beta2, rule.eps, decay, clip[rule.clip_set],
                      1 - std::pow(rule.beta1, t), 1 - std::pow(rule.beta2, t), p.copy});
  }
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
