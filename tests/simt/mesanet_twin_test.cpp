// The mesa recurrence, by steps and by chunks, forward and backward, against its CPU twin.
#include "chunk_grids.h"
#include "kernels/mesanet/scratch.h"
#include "twins.h"

using namespace hebb_test;
using namespace hebb;

namespace {

// Solutions of systems with condition numbers of some tens, in fp32; the CPU's fp32 kernels stay within as much.
constexpr double kMesaTolerance = 5e-5;

struct Sizes {
  int64_t length, heads, dk, dv, chunk;
  std::vector<int64_t> doc_start;

  Shape keys() const { return {2, length, heads, dk}; }
  Shape values() const { return {2, length, heads, dv}; }
  Shape gates() const { return {2, length, heads}; }
  Shape states(int64_t n, int64_t columns) const { return {n, heads, dk, columns}; }
};

struct Operands {
  Twin q, k, v, a, b, lambda_raw, doc_start;

  Operands(Twins& t, const Sizes& s)
      : q(t.input(s.keys())),
        k(t.input(s.keys(), 1.5 / std::sqrt(static_cast<double>(s.dk)))),
        v(t.input(s.values())),
        a(decays(t, s)),
        b(t.input(s.gates(), 2)),
        lambda_raw(t.parameter({s.heads, s.dk})),
        doc_start(t.integers({2, s.length}, s.doc_start)) {}

  /// Logits of decays: weak ones and a few that forget nearly all.
  static Twin decays(Twins& t, const Sizes& s) {
    std::vector<double> values;
    Numbers numbers(11);
    for (int64_t i = 0; i < s.gates().numel(); ++i) {
      values.push_back(static_cast<float>(i % 29 == 28 ? -100.0 : 3 + numbers.next()));
    }
    return t.values(s.gates(), values);
  }
};

MesaRule gradients(int64_t steps, double epsilon) { return {false, steps, epsilon, 0.3}; }
MesaRule exact() { return {true, 0, 0, 0.3}; }

void check_forward(Twins& t, const Sizes& s, const MesaRule& rule, bool carried, bool reports) {
  const Operands in(t, s);
  const Grid grid(s.doc_start, 2, s.length, s.chunk);
  const Twin o = t.output(s.values()), x = reports ? t.float_output(s.keys()) : Twin{},
             // What rounding leaves of converged ones differs.
      residual = reports && !rule.exact && rule.steps < 10 ? t.float_output(s.gates()) : Twin{},
             keys = carried ? t.float_sum(s.states(2, s.dk), 0) : Twin{},
             values = carried ? t.float_sum(s.states(2, s.dv)) : Twin{},
             chunks = t.integers({static_cast<int64_t>(grid.chunks.size()) / 3, 3}, grid.chunks, DType::i64),
             rows = t.integers({3}, grid.rows, DType::i64);
  t.check(
      [&](auto at) {
        return MesaForward{.o = at(o),
                           .x = at(x),
                           .residual = at(residual),
                           .keys = at(keys),
                           .values = at(values),
                           .q = at(in.q),
                           .k = at(in.k),
                           .v = at(in.v),
                           .a = at(in.a),
                           .b = at(in.b),
                           .lambda_raw = at(in.lambda_raw),
                           .doc_start = at(in.doc_start),
                           .grid = ChunkGrid{at(chunks), at(rows), grid.states, grid.longest},
                           .rule = rule};
      },
      kMesaTolerance);
}

void check_backward(Twins& t, const Sizes& s, const MesaRule& rule, bool accumulate) {
  const Operands in(t, s);
  const Grid grid(s.doc_start, 2, s.length, s.chunk);
  const auto gate = [&] { return accumulate ? t.sum(s.gates()) : t.output(s.gates()); };
  const Twin chunks = t.integers({static_cast<int64_t>(grid.chunks.size()) / 3, 3}, grid.chunks, DType::i64),
             rows = t.integers({3}, grid.rows, DType::i64), x = t.parameter(s.keys()), d_o = t.input(s.values()),
             d_q = t.output(s.keys()), d_k = t.output(s.keys()), d_v = t.output(s.values()), d_a = gate(), d_b = gate(),
             d_lambda = t.float_sum({s.heads, s.dk});
  t.check(
      [&](auto at) {
        return MesaBackward{.d_q = at(d_q),
                            .d_k = at(d_k),
                            .d_v = at(d_v),
                            .d_a = at(d_a),
                            .d_b = at(d_b),
                            .d_lambda_raw = at(d_lambda),
                            .d_o = at(d_o),
                            .x = at(x),
                            .q = at(in.q),
                            .k = at(in.k),
                            .v = at(in.v),
                            .a = at(in.a),
                            .b = at(in.b),
                            .lambda_raw = at(in.lambda_raw),
                            .doc_start = at(in.doc_start),
                            .grid = ChunkGrid{at(chunks), at(rows), grid.states, grid.longest},
                            .rule = rule,
                            .accumulate_a = accumulate,
                            .accumulate_b = accumulate};
      },
      kMesaTolerance);
}

Sizes documents() { return {41, 2, 9, 13, 15, documents_of_two_rows(41)}; }

TEST_CASE("the chunked mesa recurrence equals the CPU's", "[fast]") {
  const MesaRule rule = GENERATE(gradients(30, 0), gradients(5, 0.1), exact());
  Twins t;
  check_forward(t, documents(), rule, false, true);
}

TEST_CASE("the chunked mesa recurrence carries its memory as the CPU's does", "[fast]") {
  Sizes s{37, 1, 6, 5, 17, std::vector<int64_t>(74)};
  std::fill_n(s.doc_start.begin(), 37, -5);  // continues
  Twins t;
  check_forward(t, s, gradients(30, 0), true, false);
  Twins one;  // one chunk a row
  s.chunk = 64;
  check_forward(one, s, exact(), true, false);
}

TEST_CASE("gradients of the chunked mesa recurrence equal the CPU's", "[fast]") {
  const MesaRule rule = GENERATE(gradients(30, 0), gradients(5, 0.1), exact());
  const bool accumulate = GENERATE(false, true);
  Twins t;
  check_backward(t, documents(), rule, accumulate);
}

TEST_CASE("gradients of mesa chunks larger than a tile equal the CPU's", "[fast]") {
  Twins t;
  check_backward(t, {69, 1, 67, 66, 66, std::vector<int64_t>(138)}, gradients(4, 0), false);
}

// More chunks than a GPU takes at a time.
Sizes many_chunks() { return {65, 4, 2, 1, 1, std::vector<int64_t>(130)}; }

TEST_CASE("blocks with several chunks of the mesa recurrence equal the CPU's", "[fast]") {
  Twins forward;
  check_forward(forward, many_chunks(), gradients(2, 0.1), true, true);
  Twins backward;
  check_backward(backward, many_chunks(), gradients(2, 0.1), false);
}

// For the thread sanitizer: both kinds of solves, chunks that follow each other.
TEST_CASE("the chunked mesa recurrence and its gradients do not race", "[threads]") {
  const MesaRule rule = GENERATE(gradients(2, 0.1), exact());
  const Sizes s{5, 1, 3, 4, 2, std::vector<int64_t>(10)};
  Twins forward;
  check_forward(forward, s, rule, true, true);
  Twins backward;
  check_backward(backward, s, rule, false);
}

TEST_CASE("steps of the mesa recurrence equal the CPU's", "[fast]") {
  const MesaRule rule = GENERATE(gradients(30, 0), gradients(3, 0.1), exact());
  const Sizes s{3, 2, 9, 37, 0, {-2, -2, 2, 0, 0, 0}};
  Twins t;
  const Operands in(t, s);
  const Twin o = t.output(s.values()), keys = t.float_sum(s.states(2, s.dk), 0),
             values = t.float_sum(s.states(2, s.dv));
  t.check(
      [&](auto at) {
        return MesaSteps{.o = at(o),
                         .keys = at(keys),
                         .values = at(values),
                         .q = at(in.q),
                         .k = at(in.k),
                         .v = at(in.v),
                         .a = at(in.a),
                         .b = at(in.b),
                         .lambda_raw = at(in.lambda_raw),
                         .doc_start = at(in.doc_start),
                         .rule = rule};
      },
      kMesaTolerance);
}

}  // namespace
