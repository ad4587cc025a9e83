#include "layers/all_rows.h"

#include "layers/layer.h"

namespace hebb {
namespace {

int64_t width_of(const Shape& shape) { return shape.numel() / shape[0]; }

Shape with_tokens(Shape shape, int64_t tokens) {
  shape.dims[0] = tokens;
  return shape;
}

/// to [tokens of all ranks, .] = `own` [tokens of this rank, .] of all ranks.
void gather(Tape& tape, RankExchange& ranks, const AllRows& all, const Tensor& to, const Tensor& own) {
  Stream& stream = tape.stream();
  if (all.rows.batch() == ranks.size() * all.each) {
    ranks.all_gather(stream, to, own);
    return;
  }
  // Rows are missing at the end alone, so those that count lie together.
  const int64_t part = all.each * all.rows.length() * width_of(own.shape);
  const Buffer send = tape.scratch({part}, own.dtype, "rows of this rank"),
               receive = tape.scratch({part * ranks.size()}, own.dtype, "rows of all ranks");
  fill_zero(stream, send);
  copy(stream, send.tensor().slice(0, own.shape), own);
  ranks.all_gather(stream, receive, send);
  copy(stream, to, receive.tensor().slice(0, to.shape));
}

/// This rank's tokens of a tensor of all.
Tensor own_part(const AllRows& all, const Tensor& of_all) {
  const int64_t length = all.rows.length();
  return of_all.slice(all.first * length * width_of(of_all.shape), with_tokens(of_all.shape, all.own * length));
}

/// Every rank computes with all rows, so its gradients are those of the whole loss already.
Var gather_input(Pass& pass, Var own) {
  Tape& tape = pass.tape;
  const AllRows& rows = *pass.all_rows;
  const Var all = tape.output(with_tokens(tape.shape(own), rows.rows.tokens()), tape.dtype(own), "rows of all ranks");
  gather(tape, *pass.ranks, rows, tape.value(all), tape.value(own));
  return tape.record(all, [=, &rows](Tape& tape) {
    const GradSlot d = tape.grad_slot(own);
    if (!d) { return; }
    const Tensor part = own_part(rows, tape.grad(all));
    d.accumulate ? add_to(tape.stream(), d.tensor, part) : copy(tape.stream(), d.tensor, part);
  });
}

}  // namespace

Var with_all_rows(Pass& pass, const std::vector<Var>& inputs,
                  const std::function<Var(Pass& all, const std::vector<Var>& inputs)>& op) {
  if (pass.all_rows == nullptr) { return op(pass, inputs); }
  Tape& tape = pass.tape;
  std::vector<Var> gathered;
  for (const Var v : inputs) { gathered.push_back(v ? gather_input(pass, v) : Var{}); }
  Pass all{.tape = tape,
           .rows = pass.all_rows->rows,
           .training = pass.training,
           .seed = pass.seed,
           .step = pass.step,
           .attention = pass.attention,
           .fast = pass.fast,
           .inspector = pass.inspector,
           .statistics = pass.statistics};
  RankExchange& ranks = *pass.ranks;
  const AllRows& rows = *pass.all_rows;
  const Var of_all = op(all, gathered),
            own = tape.output(with_tokens(tape.shape(of_all), pass.tokens()), tape.dtype(of_all), "own rows");
  const Tensor to = tape.value(own), part = own_part(rows, tape.value(of_all));
  if (part.numel() < to.numel()) { fill_zero(tape.stream(), to); }
  copy(tape.stream(), to.slice(0, part.shape), part);
  return tape.record(own, [=, &ranks, &rows](Tape& tape) {
    const GradSlot d = tape.grad_slot(of_all);
    HEBB_ASSERT(d && !d.accumulate);
    gather(tape, ranks, rows, d.tensor, tape.grad(own));
  });
}

}  // namespace hebb
