// The gated delta rule, by steps and by chunks, forward and backward.
#include "tests/op_cases/gated_delta.h"

#include <algorithm>

#include "tests/roundings.h"

using namespace hebb_test;

namespace {

// A chunk is a chain of products and of a triangular system, all in fp32; the CPU's fp32 kernels stay within as much.
constexpr double kDeltaTolerance = 3e-5;
// On tensor cores what is read from and written to the state has 16 bits; an error in one write reaches all later ones.
constexpr double kSplitTolerance = 1e-3;
// What gradients of decays take from the state and its gradient in bf16 is off by 2^-9 of the largest term; entries are
// sums of such.
constexpr double kRoundedTolerance = 6e-3;

void check_forward(DType dtype, const Delta& d) {
  CAPTURE(d.dk, d.dv, d.carried, d.additive);
  check(dtype, [&](Machine& m) {
    const DeltaInputs in(m, d);
    m.run(delta_forward(m, d, in), m.is_bf16() ? kSplitTolerance : kDeltaTolerance, {"gated_delta_mma", m.is_bf16()});
  });
}

void check_backward(DType dtype, const Delta& d) {
  CAPTURE(d.dk, d.dv, d.additive);
  const bool on_tensor_cores = dtype == DType::bf16 && d.dk % 8 == 0;
  check(dtype, [&](Machine& m) {
    const DeltaInputs in(m, d);
    m.run(delta_backward(m, d, in), on_tensor_cores ? kRoundedTolerance : kDeltaTolerance,
          {"gated_delta_mma_", on_tensor_cores});
  });
}

Delta with(Delta d, bool carried, bool additive) {
  d.carried = carried;
  d.additive = additive;
  return d;
}

/// The first of the two rows continues.
Delta continued(Delta d, int64_t chunk) {
  std::fill_n(d.doc_start.begin(), d.length, -5);
  d.chunk = chunk;
  return d;
}

std::vector<int64_t> whole_rows(int64_t length) { return std::vector<int64_t>(static_cast<size_t>(2 * length)); }

const Delta kGrouped{70, 1, 2, 9, 13, 20, documents_of_two_rows(), true};

TEST_CASE("chunked delta rule", "[fast]") {
  check_forward(DType::f32, kGrouped);
  const Delta d{37, 2, 2, 6, 5, 64, whole_rows(37)};
  check_forward(DType::f32, d);
  check_forward(DType::f32, with(continued(d, 17), true, false));
  check_forward(DType::f32, with(continued(d, 17), true, true));
}

TEST_CASE("chunked delta rule on tensor cores", "[fast]") {
  check_forward(DType::bf16, {70, 1, 2, 128, 136, 64, documents_of_two_rows(), true, true});
  check_forward(DType::bf16, {70, 2, 2, 40, 24, 20, documents_of_two_rows()});
  const Delta d{131, 1, 1, 64, 72, 64, whole_rows(131)};
  check_forward(DType::bf16, d);
  check_forward(DType::bf16, with(continued(d, 33), true, false));
  check_forward(DType::bf16, with(continued(d, 33), true, true));
}

TEST_CASE("gradients of the chunked delta rule", "[fast]") {
  check_backward(DType::f32, kGrouped);
  check_backward(DType::f32, with(kGrouped, false, true));
  check_backward(DType::f32, {70, 1, 1, 70, 66, 64, whole_rows(70)});
}

TEST_CASE("gradients of the chunked delta rule on tensor cores", "[fast]") {
  check_backward(DType::bf16, {70, 1, 2, 128, 136, 64, documents_of_two_rows(), true});
  check_backward(DType::bf16, {70, 2, 2, 40, 24, 20, documents_of_two_rows()});
  check_backward(DType::bf16, {67, 1, 1, 64, 72, 33, whole_rows(67)});
  check_backward(DType::bf16, {70, 1, 2, 16, 64, 33, documents_of_two_rows(), true, false, true});
  check_backward(DType::bf16, {9, 1, 1, 9, 8, 4, whole_rows(9), true});  // left to the plain cores
}

/// d_o of which only 2^-11 is along v, as a norm behind o leaves it.
Values nearly_orthogonal(const Values& v, const Shape& shape) {
  const int64_t width = shape[-1];
  Numbers numbers(7);
  Values d_o(v.size());
  for (size_t at = 0; at < v.size(); at += static_cast<size_t>(width)) {
    double along = 0, size = 0;
    for (size_t i = at; i < at + static_cast<size_t>(width); ++i) {
      d_o[i] = numbers.next();
      along += d_o[i] * v[i];
      size += v[i] * v[i];
    }
    for (size_t i = at; i < at + static_cast<size_t>(width); ++i) { d_o[i] -= (along / size - 0x1p-11) * v[i]; }
  }
  return d_o;
}

TEST_CASE("gradients of additive writes that a token reads itself are not those of a rounded d_o", "[fast]") {
  // The state decays to nothing between tokens: gradients of q, k and strengths are products d_o . v.
  for (const int64_t dk : {16, 9}) {  // tensor cores, plain cores
    const Delta d{20, 1, 1, dk, 64, 20, whole_rows(20), false, false, true};
    check(DType::bf16, [&](Machine& m) {
      DeltaInputs in(m, d);
      in.g = m.values(d.gates(), Values(static_cast<size_t>(d.gates().numel()), -100.0));
      GatedDeltaBackward args = delta_backward(m, d, in);
      args.d_o = m.values(d.values(), nearly_orthogonal(m.read(in.v), d.values()));
      m.run(args, roundings() * (dk == 16 ? kRoundedTolerance : kDeltaTolerance), {"gated_delta_mma_", dk == 16});
    });
  }
}

TEST_CASE("steps of the delta rule", "[fast]") {
  const bool additive = GENERATE(false, true);
  const Delta d{3, 1, 2, 9, 37, 0, {-2, -2, 2, 0, 0, 0}, true, true, additive};
  check(DType::f32, [&](Machine& m) {
    const DeltaInputs in(m, d);
    m.run(delta_steps(m, d, in), kDeltaTolerance);
  });
}

TEST_CASE("the chunked delta rule and its gradients do not race", "[threads]") {
  const Delta d{5, 1, 2, 3, 4, 2, whole_rows(5), true, true};
  check_forward(DType::f32, d);
  check_backward(DType::f32, d);
  const Delta on_tensor_cores{70, 1, 1, 24, 72, 64, whole_rows(70), true, true};  // two slices of value channels
  check_forward(DType::bf16, on_tensor_cores);
  check_backward(DType::bf16, on_tensor_cores);
}

}  // namespace
