#include "layers/ops/rope.h"

#include <algorithm>

#include "layers/rope_config.h"

namespace hebb {
namespace {

/// Which entry of the table a token uses: by position where that gives fewer entries than tokens. Single tokens have
/// an entry each: their positions come from the device, so that a recorded graph may read the next ones.
struct Positions {
  int64_t first, entries;
  bool by_token;

  explicit Positions(const Rows& rows) {
    int64_t last = rows.spans()[0].offset;
    first = last;
    for (const DocumentSpan& s : rows.spans()) {
      first = std::min(first, s.offset);
      last = std::max(last, s.offset + s.length - 1);
    }
    entries = last - first + 1;
    by_token = entries > rows.tokens() || rows.length() == 1;
    if (by_token) {
      entries = rows.tokens();
      first = 0;
    }
  }
};

Var angles(Pass& pass, const RopeSpec& spec, const Positions& at, DType dtype) {
  for (const SharedValues::Angles& made : pass.shared.angles) {
    if (made.spec == spec) { return made.table; }
  }
  const Var table = pass.tape.output({at.entries, 2, spec.dims / 2}, sum_dtype(dtype), "rope table");
  run(pass.stream(), RopeTable{.table = pass.tape.value(table),
                               .doc_start = at.by_token ? pass.rows.doc_start() : Tensor{},
                               .first = at.first,
                               .spec = spec});
  pass.shared.angles.push_back({spec, table});
  return table;
}

}  // namespace

Var rope(Pass& pass, Var x, int64_t heads, const RopeSpec& spec) {
  Tape& tape = pass.tape;
  const Positions at(pass.rows);
  const Tensor doc_start = pass.rows.doc_start();
  const Shape shape{pass.batch(), pass.length(), heads, tape.shape(x).numel() / (pass.tokens() * heads)};
  HEBB_ASSERT(shape.numel() == tape.shape(x).numel() && spec.dims >= 2 && spec.dims % 2 == 0 && spec.dims <= shape[3]);
  const Var table =
      angles(pass, pass.attention.yarn != nullptr ? extended(spec, *pass.attention.yarn) : spec, at, tape.dtype(x));
  const auto rotate = [=](Tape& tape, const Tensor& to, const Tensor& from, bool inverse, bool accumulate) {
    run(tape.stream(), Rope{.y = to.view(shape),
                            .x = from.view(shape),
                            .table = tape.value(table),
                            .doc_start = doc_start,
                            .first = at.first,
                            .by_token = at.by_token,
                            .inverse = inverse,
                            .accumulate = accumulate});
  };
  const Var y = tape.output(tape.shape(x), tape.dtype(x), "rope");
  rotate(tape, tape.value(y), tape.value(x), false, false);
  return tape.record(y, [=](Tape& tape) {
    if (const GradSlot d = tape.grad_slot(x)) { rotate(tape, d.tensor, tape.grad(y), true, d.accumulate); }
  });
}

}  // namespace hebb
