#include "core/fp32_operands.h"
#include "core/bfloat.h"
#include "tests/test.h"

namespace {

struct Inner {
  Tensor x;
  int64_t size;
};
struct Args {
  Tensor y;
  Inner inner;
  Tensor z;
  double factor;
  DType type;
};

std::vector<bf16> numbers(std::initializer_list<float> values) {
  std::vector<bf16> narrow;
  for (const float x : values) { narrow.push_back(nearest_bf16(x)); }
  return narrow;
}

Tensor of(std::vector<bf16>& values, int64_t begin, int64_t count) {
  return {values.data() + begin, DType::bf16, {count}};
}

}  // namespace

TEST_CASE("an operation in bf16 sees its operands in fp32 and leaves its results rounded", "[fast]") {
  std::vector<bf16> x = numbers({1, 2, -3}), y = numbers({0, 0, 0});
  std::vector<float> z{0.5F};
  const Args args{.y = of(y, 0, 3),
                  .inner = {.x = of(x, 0, 3), .size = 3},
                  .z = {z.data(), DType::f32, {1}},
                  .factor = 1 + 1.0 / 512,
                  .type = DType::bf16};
  with_fp32_operands(args, false, [&](const Args& wide) {
    CHECK(wide.type == DType::f32);
    CHECK(wide.factor == args.factor);
    CHECK(wide.inner.size == 3);
    CHECK(wide.z.data == z.data());  // no bf16: itself
    for (int i = 0; i < 3; ++i) {
      wide.y.as<float>()[i] = wide.inner.x.as<float>()[i] * static_cast<float>(args.factor);
    }
    wide.z.as<float>()[0] = 0.25F;
  });
  CHECK(widened(y[0]) == 1.0F);  // to nearest even
  CHECK(widened(y[2]) == -3.0F);
  CHECK(widened(x[1]) == 2.0F);
  CHECK(z[0] == 0.25F);
  CHECK(args.y.dtype == DType::bf16);
}

TEST_CASE("tensors of the same memory are one copy, so that an operation in place stays in place", "[fast]") {
  std::vector<bf16> x = numbers({1, 2, 3, 4});
  const Args args{
      .y = of(x, 0, 4), .inner = {.x = of(x, 1, 2), .size = 0}, .z = of(x, 3, 1), .factor = 1, .type = DType::f32};
  with_fp32_operands(args, false, [](const Args& wide) {
    CHECK(wide.inner.x.as<float>() == wide.y.as<float>() + 1);
    CHECK(wide.z.as<float>() == wide.y.as<float>() + 3);
    wide.y.as<float>()[0] = 7;
    wide.inner.x.as<float>()[1] += wide.z.as<float>()[0];
  });
  const std::vector<float> expected{7, 2, 7, 4};
  for (size_t i = 0; i < 4; ++i) { CHECK(widened(x[i]) == expected[i]); }
}

TEST_CASE("tensors that overlap in part share a copy, neighbours and undefined ones do not", "[fast]") {
  std::vector<bf16> x = numbers({1, 2, 3, 4, 5});
  const Args args{
      .y = of(x, 1, 2), .inner = {.x = of(x, 0, 2), .size = 0}, .z = of(x, 3, 2), .factor = 1, .type = DType::f32};
  with_fp32_operands(args, false, [](const Args& wide) {
    CHECK(wide.y.as<float>() == wide.inner.x.as<float>() + 1);
    CHECK(wide.z.as<float>()[1] == 5);
    wide.y.as<float>()[0] = 9;
  });
  CHECK(widened(x[1]) == 9);
  Args undefined = args;
  undefined.z = {.data = nullptr, .dtype = DType::bf16, .shape = {0}};
  undefined.y.shape = {0};
  with_fp32_operands(undefined, false, [](const Args& wide) {
    CHECK(!wide.z.defined());
    CHECK(wide.inner.x.as<float>()[1] == 9);
  });
}

TEST_CASE("args without bf16 are passed on as they are, and counting reads nothing", "[fast]") {
  std::vector<float> x{1};
  Args args{.y = {x.data(), DType::f32, {1}}, .inner = {}, .z = {}, .factor = 1, .type = DType::f64};
  with_fp32_operands(args, false, [&](const Args& same) { CHECK(&same == &args); });
  args.y = {reinterpret_cast<void*>(64), DType::bf16, {1 << 20}};  // an address of nothing
  with_fp32_operands(args, true, [&](const Args& wide) {
    CHECK(wide.y.dtype == DType::f32);
    CHECK(wide.y.data == args.y.data);
  });
}
