// The mesa recurrence, by steps and by chunks, forward and backward.
#include "kernels/mesanet/scratch.h"

#include <algorithm>

#include "tests/op_cases/chunk_grids.h"

using namespace hebb_test;

namespace {

// Solutions of systems with condition numbers of some tens, in fp32; the CPU's fp32 kernels stay within as much.
constexpr double kMesanetTolerance = 5e-5;

struct MesanetCase {
  int64_t length, heads, dk, dv, chunk;
  std::vector<int64_t> doc_start;

  Shape keys() const { return {2, length, heads, dk}; }
  Shape values() const { return {2, length, heads, dv}; }
  Shape gates() const { return {2, length, heads}; }
  Shape states(int64_t columns) const { return {2, heads, dk, columns}; }
};

struct Inputs {
  Tensor q, k, v, a, b, lambda_raw, doc_start;

  Inputs(Machine& m, const MesanetCase& s)
      : q(m.input(s.keys())),
        k(m.input(s.keys(), 1.5 / std::sqrt(static_cast<double>(s.dk)))),
        v(m.input(s.values())),
        a(m.values(s.gates(), decays(s.gates(), 3, 1))),
        b(m.input(s.gates(), 2)),
        lambda_raw(m.parameter({s.heads, s.dk})),
        doc_start(m.integers({2, s.length}, s.doc_start)) {}
};

/// The args of a kernel with its inputs.
template <class Args> Args args_of(const Inputs& in, const MesanetRule& rule) {
  Args args{};
  args.q = in.q;
  args.k = in.k;
  args.v = in.v;
  args.a = in.a;
  args.b = in.b;
  args.lambda_raw = in.lambda_raw;
  args.doc_start = in.doc_start;
  args.rule = rule;
  return args;
}

MesanetRule gradients(int64_t steps, double epsilon) { return {false, steps, epsilon, 0.3}; }
MesanetRule exact() { return {true, 0, 0, 0.3}; }

void check_forward(const MesanetCase& s, const MesanetRule& rule, bool carried, bool reports) {
  check(DType::f32, [&](Machine& m) {
    auto args = args_of<MesanetForward>(Inputs(m, s), rule);
    args.o = m.output(s.values());
    if (reports) { args.x = m.float_output(s.keys()); }
    // What rounding leaves of residuals that converged differs.
    if (reports && !rule.exact && rule.steps < 10) { args.residual = m.float_output(s.gates()); }
    if (carried) {
      args.keys = m.float_sum(s.states(s.dk), 0);
      args.values = m.float_sum(s.states(s.dv));
    }
    args.grid = chunk_grid(m, s.doc_start, s.length, s.chunk);
    m.run(args, kMesanetTolerance);
  });
}

void check_backward(const MesanetCase& s, const MesanetRule& rule, bool accumulate) {
  check(DType::f32, [&](Machine& m) {
    auto args = args_of<MesanetBackward>(Inputs(m, s), rule);
    args.x = m.parameter(s.keys());
    args.d_o = m.input(s.values());
    args.d_q = m.output(s.keys());
    args.d_k = m.output(s.keys());
    args.d_v = m.output(s.values());
    args.d_a = m.gradient(s.gates(), accumulate);
    args.d_b = m.gradient(s.gates(), accumulate);
    args.d_lambda_raw = m.float_sum({s.heads, s.dk});
    args.accumulate_a = args.accumulate_b = accumulate;
    args.grid = chunk_grid(m, s.doc_start, s.length, s.chunk);
    m.run(args, kMesanetTolerance);
  });
}

const MesanetCase kDocuments{41, 2, 9, 13, 15, documents_of_two_rows(41)};

TEST_CASE("chunked mesa recurrence", "[fast]") {
  const MesanetRule rule = GENERATE(gradients(30, 0), gradients(5, 0.1), exact());
  check_forward(kDocuments, rule, false, true);
}

TEST_CASE("chunked mesa recurrence with a carried memory", "[fast]") {
  MesanetCase s{37, 1, 6, 5, 17, std::vector<int64_t>(74)};
  std::fill_n(s.doc_start.begin(), 37, -5);  // continues
  check_forward(s, gradients(30, 0), true, false);
  s.chunk = 64;  // one chunk a row
  check_forward(s, exact(), true, false);
}

TEST_CASE("gradients of the chunked mesa recurrence", "[fast]") {
  const MesanetRule rule = GENERATE(gradients(30, 0), gradients(5, 0.1), exact());
  check_backward(kDocuments, rule, GENERATE(false, true));
}

TEST_CASE("gradients of mesa chunks larger than a tile", "[fast]") {
  check_backward({69, 1, 67, 66, 66, std::vector<int64_t>(138)}, gradients(4, 0), false);
}

TEST_CASE("more chunks of the mesa recurrence than a GPU takes at a time", "[fast]") {
  const MesanetCase s{65, 4, 2, 1, 1, std::vector<int64_t>(130)};
  check_forward(s, gradients(2, 0.1), true, true);
  check_backward(s, gradients(2, 0.1), false);
}

// For the thread sanitizer: both kinds of solves, chunks that follow each other.
TEST_CASE("the chunked mesa recurrence and its gradients do not race", "[threads]") {
  const MesanetRule rule = GENERATE(gradients(2, 0.1), exact());
  const MesanetCase s{5, 1, 3, 4, 2, std::vector<int64_t>(10)};
  check_forward(s, rule, true, true);
  check_backward(s, rule, false);
}

TEST_CASE("steps of the mesa recurrence", "[fast]") {
  const MesanetRule rule = GENERATE(gradients(30, 0), gradients(3, 0.1), exact());
  const MesanetCase s{3, 2, 9, 37, 0, {-2, -2, 2, 0, 0, 0}};
  check(DType::f32, [&](Machine& m) {
    auto args = args_of<MesanetSteps>(Inputs(m, s), rule);
    args.o = m.output(s.values());
    args.keys = m.float_sum(s.states(s.dk), 0);
    args.values = m.float_sum(s.states(s.dv));
    m.run(args, kMesanetTolerance);
  });
}

}  // namespace
