#include "layers/ops/activation.h"
#include "layers/ops/linear.h"
#include "tests/kernels/tensors.h"

namespace {

constexpr int64_t kRows = 13, kIn = 7, kWide = 50, kOut = 5;

struct Run {
  Values y, d_x, d_gate, d_up, d_down;
  int64_t kept_bytes;  // between the passes
};

/// down(silu(gate x) * up x), with the value between as a node of its own or not.
Run run_swiglu(bool composed) {
  Tensors t(DType::f32);
  const auto leaf = [&](Tape& tape, const std::string& name, Shape shape, Tensor& grad) {
    grad = t.zeros(shape);
    return tape.leaf(t.make(shape, random_values(shape.numel(), name, 0.5)), grad, nullptr);
  };
  Tensor d_x, d_gate, d_up, d_down;
  Tape tape(t.stream, t.arena, true);
  const Var x = leaf(tape, "x", {kRows, kIn}, d_x), gate = leaf(tape, "gate", {kWide, kIn}, d_gate),
            up = leaf(tape, "up", {kWide, kIn}, d_up), down = leaf(tape, "down", {kOut, kWide}, d_down);
  const Tensor d_y = t.make({kRows, kOut}, random_values(kRows * kOut, "d_y"));
  Run result;
  const int64_t before = t.arena.in_use_bytes();
  const Var a = linear(tape, x, gate), b = linear(tape, x, up),
            y = composed ? linear(tape, swiglu(tape, a, b), down) : swiglu_linear(tape, a, b, down);
  result.kept_bytes = t.arena.in_use_bytes() - before;
  result.y = Tensors::read(tape.value(y));
  tape.seed_grad(y, d_y);
  tape.backward();
  result.d_x = Tensors::read(d_x);
  result.d_gate = Tensors::read(d_gate);
  result.d_up = Tensors::read(d_up);
  result.d_down = Tensors::read(d_down);
  return result;
}

}  // namespace

TEST_CASE("swiglu before a product keeps its two operands alone, with the same bits", "[swiglu][fast]") {
  const Run fused = run_swiglu(false), composed = run_swiglu(true);
  CHECK(fused.y == composed.y);
  CHECK(fused.d_x == composed.d_x);
  CHECK(fused.d_gate == composed.d_gate);
  CHECK(fused.d_up == composed.d_up);
  CHECK(fused.d_down == composed.d_down);
  CHECK(composed.kept_bytes - fused.kept_bytes >= kRows * kWide * 4);
}
