#include "core/tape.h"

#include "tests/test.h"

namespace {

/// y = a * b elementwise, n numbers.
Var product(Tape& tape, Var a, Var b, int* runs) {
  const Var y = tape.output(tape.shape(a), DType::f64, "product");
  for (int64_t i = 0; i < tape.value(a).numel(); ++i) {
    tape.value(y).as<double>()[i] = tape.value(a).as<double>()[i] * tape.value(b).as<double>()[i];
  }
  return tape.record(y, [=](Tape& t) {
    ++*runs;
    const double* g = t.grad(y).as<double>();
    for (const auto& [to, other] : {std::pair{a, b}, std::pair{b, a}}) {
      if (const GradSlot d = t.grad_slot(to)) {
        for (int64_t i = 0; i < d.tensor.numel(); ++i) {
          double& out = d.tensor.as<double>()[i];
          out = (d.accumulate ? out : 0.0) + g[i] * t.value(other).as<double>()[i];
        }
      }
    }
  });
}

struct Fixture {
  Stream stream;
  Arena arena{DeviceKind::cpu};
  double x[3] = {2, 3, 5}, grad[3] = {0, 0, 0}, one[3] = {1, 1, 1};
  bool reached = false;
  int runs = 0;

  Tensor tensor(double* data) { return {data, DType::f64, {3}}; }
  Fixture() { arena.set_poison(true); }
};

}  // namespace

TEST_CASE_METHOD(Fixture, "gradients of a value with several users add up", "[fast]") {
  {
    Tape tape(stream, arena, true);
    const Var v = tape.leaf(tensor(x), tensor(grad), &reached);
    const Var square = product(tape, v, v, &runs);         // x^2
    const Var cube = product(tape, square, v, &runs);      // x^3
    const Var fifth = product(tape, cube, square, &runs);  // x^5
    product(tape, fifth, fifth, &runs);                    // nobody uses it
    tape.seed_grad(fifth, tensor(one));
    tape.backward();
  }
  CHECK(runs == 3);
  CHECK(reached);
  CHECK(grad[0] == 5 * 16.0);
  CHECK(grad[1] == 5 * 81.0);
  CHECK(grad[2] == 5 * 625.0);
  CHECK(arena.in_use_bytes() == 0);
}

TEST_CASE_METHOD(Fixture, "recompute gives the same gradients and keeps nothing inside", "[fast]") {
  const auto chain = [&](Tape& tape, Var v) {
    return product(tape, product(tape, product(tape, v, v, &runs), v, &runs), v, &runs);
  };
  double kept[3];
  int64_t peak = 0;
  for (const bool again : {false, true}) {
    std::fill(grad, grad + 3, 0.0);
    Tape tape(stream, arena, true);
    const Var v = tape.leaf(tensor(x), tensor(grad), &reached);
    const Var y = again ? tape.recompute([&] { return std::vector<Var>{chain(tape, v)}; })[0] : chain(tape, v);
    const int64_t held = arena.in_use_bytes();
    tape.seed_grad(y, tensor(one));
    tape.backward();
    if (!again) {
      std::copy(grad, grad + 3, kept);
      peak = held;
    } else {
      CHECK(std::equal(grad, grad + 3, kept));
      CHECK(held < peak);
    }
  }
  CHECK(grad[1] == 4 * 27.0);
}

TEST_CASE_METHOD(Fixture, "a leaf is final once, after the last node that can add to it", "[fast]") {
  double w[3] = {1, 2, 3}, unused[3] = {1, 1, 1}, grads[3][3] = {};
  enum { kTied, kMiddle, kUnreached };
  for (const bool again : {false, true}) {
    CAPTURE(again);
    for (auto& g : grads) { std::fill(g, g + 3, 0.0); }
    std::vector<std::pair<const void*, std::vector<double>>> calls;  // which, and what it was then
    Tape tape(stream, arena, true);
    tape.call_when_final([&](const Tensor& grad) {
      const double* g = grad.as<double>();
      calls.emplace_back(g, std::vector<double>(g, g + 3));
    });
    const Var other = tape.leaf(tensor(unused), tensor(grads[kUnreached]), nullptr);
    product(tape, other, other, &runs);  // nobody uses it
    const Var start = tape.constant(tensor(x));
    const Var y = product(tape, start, tape.leaf(tensor(x), tensor(grads[kTied]), &reached), &runs);
    const auto block = [&] {
      const Var p = tape.leaf(tensor(w), tensor(grads[kMiddle]), nullptr);
      const Var square = product(tape, p, p, &runs);
      // The same memory as the leaf above, and that one again.
      const Var tied = tape.leaf(tensor(x), tensor(grads[kTied]), &reached);
      return std::vector<Var>{product(tape, product(tape, y, tied, &runs), square, &runs)};
    };
    const Var z = again ? tape.recompute(block)[0] : block()[0];
    tape.leaf(tensor(w), {}, nullptr);                                                              // no gradient
    const Var end = product(tape, z, tape.leaf(tensor(x), tensor(grads[kTied]), &reached), &runs);  // x^4 w^2
    tape.seed_grad(end, tensor(one));
    CHECK(calls.empty());
    tape.backward();
    REQUIRE(calls.size() == 3);
    const void* order[] = {grads[kMiddle], grads[kTied], grads[kUnreached]};
    for (size_t i = 0; i < 3; ++i) {
      CAPTURE(i);
      CHECK(calls[i].first == order[i]);
      const double* now = static_cast<const double*>(order[i]);
      CHECK(calls[i].second == std::vector<double>(now, now + 3));
    }
    CHECK(grads[kMiddle][1] == 2 * 2 * 81.0);
    CHECK(grads[kTied][1] == 3 * 27.0 * 4);  // not of the constant
    CHECK(grads[kUnreached][1] == 0);
  }
}

TEST_CASE_METHOD(Fixture, "leaves of a tape without nodes are final at the end", "[fast]") {
  int calls = 0;
  Tape tape(stream, arena, true);
  tape.call_when_final([&](const Tensor&) { ++calls; });
  tape.leaf(tensor(x), tensor(grad), &reached);
  tape.leaf(tensor(x), tensor(grad), &reached);
  tape.backward();
  CHECK(calls == 1);
}

TEST_CASE_METHOD(Fixture, "pass_grad shares memory until somebody writes", "[fast]") {
  Tape tape(stream, arena, true);
  const Var a = product(tape, tape.constant(tensor(x)), tape.constant(tensor(one)), &runs);
  const Var b = product(tape, tape.constant(tensor(x)), tape.constant(tensor(one)), &runs);
  const Var c = product(tape, tape.constant(tensor(x)), tape.constant(tensor(one)), &runs);
  tape.seed_grad(c, tensor(x));
  tape.pass_grad(a, c);
  tape.pass_grad(b, c);
  CHECK(tape.grad(a).data == tape.grad(b).data);
  const GradSlot slot = tape.grad_slot(a);
  CHECK(slot.accumulate);
  slot.tensor.as<double>()[0] = 100;
  CHECK(tape.grad(b).as<double>()[0] == 2);
  tape.pass_grad(b, a);
  CHECK(tape.grad(b).as<double>()[0] == 102);
  CHECK(tape.grad(c).as<double>()[0] == 2);
}

TEST_CASE_METHOD(Fixture, "a scope frees everything but what it keeps while not recording", "[fast]") {
  Tape tape(stream, arena, false);
  Var kept;
  {
    Tape::Scope scope(tape);
    const Var v = tape.constant(tensor(x));
    kept = scope.keep(product(tape, product(tape, v, v, &runs), v, &runs));
  }
  CHECK(tape.value(kept).as<double>()[2] == 125);
  CHECK(arena.in_use_bytes() == 64);
}
