#include "layers/ops/convert.h"

#include "core/bfloat.h"
#include "tests/test.h"

TEST_CASE("conversions round values on the way there and gradients on the way back", "[fast]") {
  Stream stream;
  Arena arena(DeviceKind::cpu);
  const Buffer x(arena, {3}, DType::f32, "x"), d_x(arena, {3}, DType::f32, "d_x"), d_z(arena, {3}, DType::f32, "d_z");
  const std::vector<float> values{1.001f, -2.5f, 1e-3f}, gradient{0.3f, 1.0f, -7e5f}, before{1.0f, 0.25f, 0.0f};
  copy_to_device(stream, x, values.data());
  copy_to_device(stream, d_x, before.data());
  copy_to_device(stream, d_z, gradient.data());
  bool reached = false;
  Tape tape(stream, arena, true);
  const Var a = tape.leaf(x, d_x, &reached);
  CHECK(convert(tape, a, DType::f32) == a);
  const Var b = convert(tape, a, DType::bf16), c = convert(tape, b, DType::f32);
  CHECK(tape.dtype(b) == DType::bf16);
  tape.seed_grad(c, d_z);
  const Tensor out = tape.value(c);
  for (size_t i = 0; i < values.size(); ++i) { CHECK(out.as<float>()[i] == widened(nearest_bf16(values[i]))); }
  tape.backward();
  CHECK(reached);
  for (size_t i = 0; i < values.size(); ++i) {
    CHECK(d_x.tensor().as<float>()[i] == before[i] + widened(nearest_bf16(gradient[i])));
  }
}
