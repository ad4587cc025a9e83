#include "layers/ops/rope.h"

#include "tests/kernels/tensors.h"
#include "tests/layers/harness.h"

namespace {

RopeSpec spec(double theta, int64_t dims) { return {.theta = theta, .dims = dims}; }

RopeSpec yarn(double theta, int64_t dims, double factor, int64_t original, double attention_factor) {
  RopeSpec s = spec(theta, dims);
  s.yarn = true;
  s.factor = factor;
  s.original = original;
  s.attention_factor = attention_factor;
  return s;
}

/// Rotates rows of one head of d channels, each at its own document position.
std::vector<double> rotated(const std::vector<double>& x, int64_t d, const std::vector<int64_t>& positions,
                            const RopeSpec& s) {
  Tensors t(DType::f64);
  std::vector<double> out;
  for (size_t i = 0; i < positions.size(); ++i) {
    const Rows rows = Rows::streams(t.stream, t.arena, 1, 1, positions[i]);
    Tape tape(t.stream, t.arena, false);
    Pass pass{tape, rows};
    const auto row = x.begin() + static_cast<int64_t>(i) * d;
    const Values y = Tensors::read(tape.value(rope(pass, tape.constant(t.make({1, d}, {row, row + d})), 1, s)));
    out.insert(out.end(), y.begin(), y.end());
  }
  return out;
}

double product(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

}  // namespace

TEST_CASE("rotary logits depend on differences of positions only", "[fast]") {
  const RopeSpec s = GENERATE(spec(10000.0, 10), spec(3.0, 6), yarn(100.0, 10, 4.0, 16, 1.2));
  const std::vector<double> q = random_values(10, "1"), k = random_values(10, "2");
  const double near = product(rotated(q, 10, {7}, s), rotated(k, 10, {3}, s));
  const double far = product(rotated(q, 10, {100007}, s), rotated(k, 10, {100003}, s));
  CHECK(near == Approx(far).epsilon(1e-9));  // angles of 1e5 radians are known to 1e-11
  CHECK(near != Approx(product(q, k)).epsilon(1e-3));
}

TEST_CASE("rotation pairs the halves of the rotated channels and leaves the others alone", "[fast]") {
  const std::vector<double> x = random_values(9, "3"), y = rotated(x, 9, {5}, spec(10000.0, 6));
  for (int i = 0; i < 3; ++i) {
    const size_t a = static_cast<size_t>(i), b = a + 3;
    const double angle = 5 * std::pow(10000.0, -2.0 * i / 6);
    CHECK(y[a] == Approx(x[a] * std::cos(angle) - x[b] * std::sin(angle)).epsilon(1e-14));
    CHECK(y[b] == Approx(x[b] * std::cos(angle) + x[a] * std::sin(angle)).epsilon(1e-14));
  }
  for (size_t i = 6; i < 9; ++i) { CHECK(y[i] == x[i]); }
  CHECK(rotated(x, 9, {0}, spec(10000.0, 8)) == x);
}

TEST_CASE("frequencies of YaRN equal the table of the page", "[fast]") {
  const RopeSpec longer = yarn(1e4, 16, 8.0, 4096, 1.0), shorter = yarn(1e4, 16, 8.0, 1024, 1.0);
  const double expected_longer[] = {0.1, 0.0247052942, 0.005625, 0.00108703294};
  const double expected_shorter[] = {0.078125, 0.0177878118, 0.0034375, 0.000395284708};
  for (int i = 0; i < 4; ++i) {
    CHECK(longer.frequency(i + 2) == Approx(expected_longer[i]).epsilon(1e-8));
    CHECK(shorter.frequency(i + 2) == Approx(expected_shorter[i]).epsilon(1e-8));
  }
}

TEST_CASE("YaRN without truncation slows channels down between fractions of pairs", "[fast]") {
  RopeSpec s = yarn(1e4, 16, 8.0, 4096, 1.0);
  s.truncate = false;
  const auto pair_of = [](double turns) { return 8 * std::log(4096 / (2 * M_PI * turns)) / std::log(1e4); };
  const double low = pair_of(32), high = pair_of(1);
  REQUIRE(low > 2);
  REQUIRE(high < 6);
  for (int i = 0; i < 8; ++i) {
    const double plain = std::pow(10.0, -0.5 * i), w = std::clamp((i - low) / (high - low), 0.0, 1.0);
    CHECK(s.frequency(i) == Approx(plain * (1 - w + w / 8)).epsilon(1e-14));
  }
  CHECK(s.frequency(3) != Approx(yarn(1e4, 16, 8.0, 4096, 1.0).frequency(3)).epsilon(1e-3));
}

TEST_CASE("frequencies of Llama 3.1 equal those of transformers", "[fast]") {
  // ROPE_INIT_FUNCTIONS["llama3"] of transformers 5.24 in float64.
  RopeSpec s = spec(500000.0, 16);
  s.llama3 = true;
  s.factor = 8;
  s.original = 8192;
  s.low_freq_factor = 1;
  s.high_freq_factor = 4;
  const double expected[] = {1,
                             0.1939227447486858,
                             0.03760603093086393,
                             0.007292664737217108,
                             0.0005248461609929547,
                             3.428102195952591e-05,
                             6.647869871181236e-06,
                             1.289173172151557e-06};
  for (int i = 0; i < 8; ++i) { CHECK(s.frequency(i) == Approx(expected[i]).epsilon(1e-12)); }
}

TEST_CASE("YaRN with factor 1 is RoPE, and its attention factor scales rotated channels only", "[fast]") {
  const std::vector<double> x = random_values(8, "4");
  CHECK(rotated(x, 8, {12}, yarn(50.0, 6, 1.0, 64, 1.0)) == rotated(x, 8, {12}, spec(50.0, 6)));
  const std::vector<double> plain = rotated(x, 8, {12}, yarn(50.0, 6, 2.0, 64, 1.0)),
                            scaled = rotated(x, 8, {12}, yarn(50.0, 6, 2.0, 64, 1.5));
  for (size_t i = 0; i < 8; ++i) { CHECK(scaled[i] == Approx(plain[i] * (i < 6 ? 1.5 : 1.0)).epsilon(1e-15)); }
}

TEST_CASE("endpoint frequencies run from 1 to 1 / theta", "[fast]") {
  RopeSpec s = spec(625.0, 10);
  s.endpoint = true;
  for (int i = 0; i < 5; ++i) { CHECK(s.frequency(i) == Approx(std::pow(5.0, -i)).epsilon(1e-14)); }
}

TEST_CASE("positions follow documents, whichever way the table is made", "[fast]") {
  // 30 tokens of three documents: positions 0..19. With an offset of 100000 the same positions and
  // more would need a table of 100000 entries, so it is made by token.
  Tensors t(DType::f64);
  const std::vector<double> x = random_values(30 * 8, "5");
  const RopeSpec s = spec(10.0, 4);
  for (const int64_t offset : {int64_t{0}, int64_t{100000}}) {
    const Rows rows = Rows::documents(t.stream, t.arena, 1, 30, documents({3, 20, 7}), offset);
    Tape tape(t.stream, t.arena, false);
    Pass pass{tape, rows};
    const Values y = Tensors::read(tape.value(rope(pass, tape.constant(t.make({30, 8}, x)), 2, s)));
    for (int64_t i = 0; i < 30; ++i) {
      const int64_t position = i < 3 ? i + offset : i < 23 ? i - 3 : i - 23;
      const Values heads(x.begin() + i * 8, x.begin() + i * 8 + 8);
      const Values expected = rotated(heads, 4, {position, position}, s);
      CHECK(std::equal(expected.begin(), expected.end(), y.begin() + i * 8));
    }
  }
}
