#include "layers/ham/select.h"

#include "layers/ops/host_values.h"

namespace hebb {
namespace {

/// The mask to use in place of the router's decision, on the device; empty without one.
Buffer forced_mask(Pass& pass, const std::string& name) {
  const std::vector<int64_t>* forced = forced_decisions(pass, name, pass.tokens());
  if (forced == nullptr) { return {}; }
  for (const int64_t m : *forced) {
    if (m != 0 && m != 1) { throw DataError(name, "forced decision", std::to_string(m), "0 or 1"); }
  }
  const std::vector<int32_t> narrow(forced->begin(), forced->end());
  Buffer mask = pass.tape.scratch({pass.batch(), pass.length()}, DType::i32, "forced decisions");
  copy_to_device(pass.stream(), mask, narrow.data());
  return mask;
}

/// Selected tokens among the first T j / 16 of a row, j = 1 to 16, mean over rows (docs/layers/ham.md, Statistics).
std::vector<double> growth(const std::vector<int64_t>& mask, int64_t rows, int64_t length) {
  constexpr int64_t kParts = 16;
  std::vector<double> tokens(kParts);
  for (int64_t j = 0; j < kParts; ++j) {
    for (int64_t n = 0; n < rows * length; ++n) {
      const bool counts = mask[static_cast<size_t>(n)] > 0 && n % length < length * (j + 1) / kParts;
      tokens[static_cast<size_t>(j)] += counts ? 1.0 / static_cast<double>(rows) : 0.0;
    }
  }
  return tokens;
}

void report(Pass& pass, Var score, const Tensor& slot, const std::string& name) {
  const int64_t rows = pass.batch(), length = pass.length();
  const std::vector<int32_t> slots = host_integers(pass.stream(), slot);
  Inspector::Record& mask = pass.inspector->records[name + ".mask"];
  mask = {{rows, length}, {}, {}};
  for (const int32_t s : slots) { mask.integers.push_back(s >= 0 ? 1 : 0); }
  const std::vector<double> tokens = growth(mask.integers, rows, length);
  pass.inspector->records[name + ".kv_growth"] = {{static_cast<int64_t>(tokens.size())}, {}, tokens};
  if (!score) { return; }
  const std::vector<double> scores = host_values(pass.stream(), pass.tape.value(score));
  std::vector<double> by_position(static_cast<size_t>(length));
  for (size_t n = 0; n < scores.size(); ++n) {
    by_position[n % static_cast<size_t>(length)] += scores[n] / static_cast<double>(rows);
  }
  pass.inspector->records[name + ".score"] = {{rows, length}, {}, scores};
  pass.inspector->records[name + ".score_by_position"] = {{length}, {}, by_position};
}

}  // namespace

std::vector<int64_t> HamSelection::host_selected(Stream& stream) const {
  const std::vector<int32_t> counts = host_integers(stream, selected);
  return {counts.begin(), counts.end()};
}

HamSelection select_tokens(Pass& pass, Var score, const HamDecision& decision, const Tensor& held,
                           const std::string& name) {
  Tape& tape = pass.tape;
  const Shape shape{pass.batch(), pass.length()};
  HamSelection s{tape.output(shape, DType::i32, "slots"), tape.output(shape, DType::i32, "first visible slots"),
                 tape.output(shape, DType::i32, "last visible slots"),
                 tape.scratch({shape[0]}, DType::i32, "selected tokens")};
  const Buffer forced = held.defined() ? Buffer() : forced_mask(pass, name + ".mask");
  run(pass.stream(), SelectTokens{.slot = tape.value(s.slot),
                                  .lo = tape.value(s.lo),
                                  .hi = tape.value(s.hi),
                                  .selected = s.selected,
                                  .score = score ? tape.value(score).view(shape) : Tensor{},
                                  .threshold = decision.threshold,
                                  .forced = forced,
                                  .held = held,
                                  .doc_start = pass.rows.doc_start(),
                                  .selecting = decision.selecting,
                                  .range = decision.range,
                                  .tau = decision.tau});
  if (pass.records() && !held.defined()) { report(pass, score, tape.value(s.slot), name); }
  return s;
}

Var pack_tokens(Pass& pass, Var x, const HamSelection& selection, Var factor) {
  Tape& tape = pass.tape;
  const Shape shape{pass.batch(), pass.length(), tape.shape(x)[1]}, one_row{1, pass.tokens(), tape.shape(x)[1]};
  const Var slot = selection.slot, list = tape.output(tape.shape(x), tape.dtype(x), "selected tokens");
  run(tape.stream(), PackTokens{.list = tape.value(list).view(one_row),
                                .x = tape.value(x).view(shape),
                                .slot = tape.value(slot),
                                .factor = tape.value_or_none(factor)});
  return tape.record(list, [=](Tape& tape) {
    const GradSlot d_x = tape.grad_slot(x), d_factor = tape.grad_slot(factor);
    run(tape.stream(), PackTokensBackward{.d_x = d_x.view(shape),
                                          .d_factor = d_factor.tensor,
                                          .d_list = tape.grad(list).view(one_row),
                                          .x = tape.value(x).view(shape),
                                          .slot = tape.value(slot),
                                          .factor = tape.value_or_none(factor),
                                          .accumulate_x = d_x.accumulate,
                                          .accumulate_factor = d_factor.accumulate});
  });
}

}  // namespace hebb
