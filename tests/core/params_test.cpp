#include "core/params.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/bfloat.h"
#include "core/tape.h"
#include "tests/test.h"

namespace {

/// A matrix, a vector, a table with three dimensions and a fast matrix.
struct Store {
  Stream stream;
  Arena arena{DeviceKind::cpu};
  ParamStore params;
  Param &matrix, &vector, &cube, &fast;

  explicit Store(DType dtype)
      : matrix(params.declare({"matrix", {5, 7}, init::normal(1)})),
        vector(params.declare({"vector", {7}, init::normal(1)})),
        cube(params.declare({"cube", {2, 3, 3}, init::normal(1)})),
        fast(params.declare({"fast", {3, 3}, init::normal(1), ParamKind::fast})) {
    params.allocate(arena, dtype, true);
    params.initialize(stream, 1);
  }
  bool is_fresh() const {
    for (int64_t i = 0; i < matrix.value.numel(); ++i) {
      if (matrix.copy.as<bf16>()[i].bits != nearest_bf16(matrix.value.as<float>()[i]).bits) { return false; }
    }
    return true;
  }
};

}  // namespace

TEST_CASE("numbers round to the nearest bf16, ties to the even one", "[fast]") {
  CHECK(widened(nearest_bf16(1.00390625f)) == 1.0f);        // 1 + 2^-8: between 1 and 1 + 2^-7
  CHECK(widened(nearest_bf16(1.01171875f)) == 1.015625f);   // 1 + 3 2^-8: between 1 + 2^-7 and 1 + 2^-6
  CHECK(widened(nearest_bf16(1.00390637f)) == 1.0078125f);  // just above the first tie
  CHECK(widened(nearest_bf16(-3.0f)) == -3.0f);
  CHECK(std::isinf(widened(nearest_bf16(std::numeric_limits<float>::max()))));
  CHECK(std::isnan(widened(nearest_bf16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST_CASE("initial normals are those of their stream in order, though threads share them", "[fast]") {
  Rng shared(3, "w"), alone(3, "w");
  std::vector<float> values(50001);
  init::normal(0.5)(shared, values.data(), static_cast<int64_t>(values.size()));
  for (const float x : values) { REQUIRE(x == static_cast<float>(0.5 * alone.normal())); }
  CHECK(shared.u64() == alone.u64());
}

TEST_CASE("stores for bf16 hold fp32 values and rounded copies of trained matrices alone", "[fast]") {
  Store s(DType::bf16);
  CHECK(s.params.dtype() == DType::bf16);
  for (const Param* p : {&s.matrix, &s.vector, &s.cube}) {
    CHECK(p->value.dtype == DType::f32);
    CHECK(p->grad.dtype == DType::f32);
    CHECK(p->m.dtype == DType::f32);
  }
  CHECK(s.fast.value.dtype == DType::f32);
  CHECK(s.matrix.copy.shape == s.matrix.value.shape);
  CHECK_FALSE(s.vector.copy.defined());
  CHECK_FALSE(s.cube.copy.defined());
  CHECK_FALSE(s.fast.copy.defined());
  CHECK(s.is_fresh());
  s.matrix.value.as<float>()[4] += 1;
  CHECK_FALSE(s.is_fresh());
  s.params.refresh_copies(s.stream);
  CHECK(s.is_fresh());
  CHECK_FALSE(Store(DType::f32).matrix.copy.defined());
  CHECK_FALSE(Store(DType::f64).matrix.copy.defined());
}

TEST_CASE("a store without masters has values of what has no copy", "[fast]") {
  const auto bytes_of = [](bool masters) {
    Arena arena(DeviceKind::cpu);
    ParamStore params;
    const Param &matrix = params.declare({"matrix", {16, 16}, init::normal(1)}),
                &taps = params.declare({"taps", {16, 4}, init::normal(1)}).read_in_fp32(),
                &vector = params.declare({"vector", {16}, init::normal(1)});
    params.allocate(arena, DType::bf16, true, {.gradients = true, .moments = true, .masters = masters});
    CHECK(matrix.value.defined() == masters);
    CHECK((matrix.value.shape == Shape{16, 16} && matrix.value.dtype == DType::f32));
    CHECK((matrix.copy.defined() && taps.value.defined() && vector.value.defined()));
    CHECK_FALSE(taps.copy.defined());
    return arena.in_use_bytes();
  };
  CHECK(bytes_of(true) - bytes_of(false) == 4 * 16 * 16);
}

TEST_CASE("matrix products read the copy of a parameter, also through a view, and everything else the value",
          "[fast]") {
  Store s(DType::bf16);
  Tape tape(s.stream, s.arena, true);
  const Var matrix = tape.leaf(s.matrix.value, s.matrix.grad, &s.matrix.reached, s.matrix.copy);
  const Var vector = tape.leaf(s.vector.value, s.vector.grad, &s.vector.reached, s.vector.copy);
  CHECK(tape.matrix(matrix).data == s.matrix.copy.data);
  CHECK(tape.value(matrix).data == s.matrix.value.data);
  CHECK(tape.matrix(vector).data == s.vector.value.data);
  const Var view = tape.view(matrix, {35});
  CHECK(tape.matrix(view).data == s.matrix.copy.data);
  CHECK(tape.matrix(view).shape == Shape{35});
  CHECK(tape.grad_slot(view).tensor.data == s.matrix.grad.data);
}

TEST_CASE("scratch memory is laid out with the parameters and is none of them", "[fast]") {
  Arena arena(DeviceKind::cpu);
  ParamStore store;
  store.declare({"weight", {3, 5}, init::normal(1.0)});
  const Tensor &counter = store.declare_scratch("counter", {7, 2}, DType::i64),
               &sum = store.declare_scratch("sum", {3}, std::nullopt);
  CHECK_FALSE(counter.defined());
  store.allocate(arena, DType::bf16, true);
  CHECK(counter.defined());
  CHECK(counter.dtype == DType::i64);
  CHECK(counter.shape == Shape{7, 2});
  CHECK(sum.dtype == DType::f32);
  CHECK(store.all().size() == 1);
}

TEST_CASE("gradients that begin anew have reached no parameter, and moments that do are zero", "[fast]") {
  Store store(DType::f64);
  for (Param* p : {&store.matrix, &store.vector}) {
    p->reached = true;
    p->updates = 3;
    for (const Tensor& t : {p->grad, p->m, p->v}) { std::fill_n(t.as<double>(), t.numel(), 2.0); }
  }
  store.params.zero_grads(store.stream);
  store.matrix.reset_moments(store.stream);
  CHECK_FALSE((store.matrix.reached || store.vector.reached));
  CHECK(store.matrix.updates == 0);
  CHECK(store.vector.updates == 3);
  const auto all = [](const Tensor& t, double value) {
    return std::all_of(t.as<double>(), t.as<double>() + t.numel(), [&](double x) { return x == value; });
  };
  CHECK((all(store.matrix.grad, 0) && all(store.vector.grad, 0)));
  CHECK((all(store.matrix.m, 0) && all(store.matrix.v, 0)));
  CHECK((all(store.vector.m, 2) && all(store.vector.v, 2)));
}
