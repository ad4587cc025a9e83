#include "layers/ops/rope.h"

#include <fmt/core.h>

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

/// Every bit of the settings: tables are shared between blocks of equal ones.
std::string table_key(const RopeSpec& s) {
  std::string key = fmt::format("rope/{:a}/{}/{}", s.theta, s.dims, s.endpoint);
  if (s.yarn) {
    key += fmt::format("/{:a}/{}/{:a}/{:a}/{:a}", s.factor, s.original, s.beta_fast, s.beta_slow, s.attention_factor);
  }
  return key;
}

Var angles(Pass& pass, const RopeSpec& spec, const Positions& at, DType dtype) {
  const std::string key = table_key(spec);
  if (const auto it = pass.shared.find(key); it != pass.shared.end()) { return it->second; }
  const Var table = pass.tape.output({at.entries, 2, spec.dims / 2}, sum_dtype(dtype), "rope table");
  run(pass.stream(), RopeTable{.table = pass.tape.value(table),
                               .doc_start = at.by_token ? pass.rows.doc_start() : Tensor{},
                               .first = at.first,
                               .spec = spec});
  pass.shared[key] = table;
  return table;
}

struct RopeNode final : Node {
  Var x, table, y;
  Tensor doc_start;
  Shape shape;  // [B, T, H, D]
  int64_t first;
  bool by_token;

  void backward(Tape& tape) override {
    if (const GradSlot d = tape.grad_slot(x)) {
      run(tape.stream(), Rope{.y = d.tensor.view(shape),
                              .x = tape.grad(y).view(shape),
                              .table = tape.value(table),
                              .doc_start = doc_start,
                              .first = first,
                              .by_token = by_token,
                              .inverse = true,
                              .accumulate = d.accumulate});
    }
  }
};

}  // namespace

Var rope(Pass& pass, Var x, int64_t heads, const RopeSpec& spec) {
  Tape& tape = pass.tape;
  const Positions at(pass.rows);
  RopeNode node;
  node.x = x;
  node.doc_start = pass.rows.doc_start();
  node.shape = {pass.batch(), pass.length(), heads, tape.shape(x).numel() / (pass.tokens() * heads)};
  node.first = at.first;
  node.by_token = at.by_token;
  HEBB_ASSERT(node.shape.numel() == tape.shape(x).numel() && spec.dims >= 2 && spec.dims % 2 == 0 &&
              spec.dims <= node.shape[3]);
  node.table =
      angles(pass, pass.attention.yarn != nullptr ? extended(spec, *pass.attention.yarn) : spec, at, tape.dtype(x));
  node.y = tape.output(tape.shape(x), tape.dtype(x), "rope");
  run(tape.stream(), Rope{.y = tape.value(node.y).view(node.shape),
                          .x = tape.value(x).view(node.shape),
                          .table = tape.value(node.table),
                          .doc_start = node.doc_start,
                          .first = node.first,
                          .by_token = node.by_token,
                          .inverse = false,
                          .accumulate = false});
  return tape.record(std::move(node), &RopeNode::y);
}

}  // namespace hebb
