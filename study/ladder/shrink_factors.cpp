#include "study/ladder/shrink_factors.h"

#include <fmt/format.h>

namespace hebb {

std::string flops_name(double flops) {
  const std::string text = fmt::format("{:.6g}", flops);
  const size_t e = text.find('e');
  if (e == std::string::npos) { return text; }
  return fmt::format("{}{:d}", text.substr(0, e + 1), std::stoi(text.substr(e + 1)));
}

std::string ShrinkBudget::option() const { return (is_total ? "--shrink-total " : "--shrink ") + flops_name(flops); }

std::string ShrinkBudget::text() const {
  return flops_name(flops) + (is_total ? " training FLOPs in all" : " training FLOPs per run");
}

std::string ShrinkBudget::suffix() const { return (is_total ? "-shrunk-total-" : "-shrunk-") + flops_name(flops); }

void fields(Fields& f, ShrinkFactors::Tail& tail) {
  f.field("layers", tail.layers).required().min(0);
  f.field("blocks", tail.blocks).required().min(1);
}

void fields(Fields& f, ShrinkFactors::Parameters& parameters) {
  f.field("tokens", parameters.tokens).required().min(0);
  f.field("factor", parameters.factor).required().above(0);
}

void fields(Fields& f, ShrinkFactors& factors) {
  f.field("flops", factors.budget.flops).required().above(0);
  f.field("total", factors.budget.is_total);
  f.field("width", factors.width).required().above(0).max(1);
  f.field("lengths", factors.lengths).required().above(0).max(1);
  f.field("tokens", factors.tokens).required().above(0);
  f.field("period", factors.period).required().min(1);
  f.list("tails", factors.tails);
  f.list("parameters", factors.parameters);
  f.field("validation_rows", factors.validation_rows).min(0);
  f.field("documents", factors.documents).min(0);
  f.field("joined", factors.joined).min(1);
  f.field("runs", factors.runs);
}

}  // namespace hebb
