#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "kernels/product_key/select.h"
#include "tests/layers/properties.h"

namespace {

std::string model(const std::string& pkm, const std::string& extra = "") {
  return R"({"vocab_size": 19, "hidden_size": 10, "num_layers": 1, "norm_eps": 1e-5,
    "layers": {"a": {"type": "attention", "num_heads": 1, "head_dim": 4, "window": 1},
               "p": {"type": "pkm", )" +
         pkm + R"(}}, "pattern": [{"mixer": "a", "ffn": "p"}])" + extra + "}";
}

}  // namespace

TEST_CASE("pkm reports how its slots are used", "[fast]") {
  TestModel m(model(R"("num_subkeys": 5, "key_dim": 4, "value_dim": 3, "num_heads": 2, "top_k": 3)"), DType::f64, 3,
              0.5);
  const TraceInput input = random_input(2, 7, 19);
  const std::vector<int64_t> slots = m.run(input, inside({})).inside.at("blocks.0.ffn.slots").integers;
  std::map<int64_t, double> reads;
  for (const int64_t slot : slots) { reads[slot] += 1; }
  double collision = 0, kld = 0;
  constexpr double kAll = 2 * 7 * 2 * 3;
  for (const auto& [slot, count] : reads) {
    collision += count > 1 ? count / kAll : 0;
    kld += count / kAll * std::log(25 * count / kAll);
  }
  const auto s = m.statistics(input).at("blocks.0.ffn");
  CHECK(s.at("collision") == Approx(collision));
  CHECK(s.at("coverage") == Approx(static_cast<double>(reads.size()) / 25));
  CHECK(s.at("kld") == Approx(kld));
}

TEST_CASE("two-stage selection equals an exhaustive search over all sums, ties included", "[fast]") {
  Rng rng(4, "selection");
  cpu::ProductKeyWork<double> work;
  for (const int64_t n : {2, 3, 7, 12}) {
    for (const int64_t k : {int64_t{1}, int64_t{2}, n - 1, n, n + 1, n * n}) {
      for (const uint32_t levels : {2u, 4u, 1000u}) {  // few levels: many ties
        std::vector<double> s1, s2;
        for (int64_t i = 0; i < n; ++i) {
          s1.push_back(rng.below(levels));
          s2.push_back(rng.below(levels));
        }
        std::vector<std::pair<double, int32_t>> all;
        for (int64_t i = 0; i < n; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            all.push_back(
                {-(s1[static_cast<size_t>(i)] + s2[static_cast<size_t>(j)]), static_cast<int32_t>(i * n + j)});
          }
        }
        // The first stage keeps the k best of each half by (score, index); a slot outside cannot win a
        // tie against one inside unless its half's index is lower, which the first stage respects.
        std::sort(all.begin(), all.end());
        std::vector<int32_t> slots(static_cast<size_t>(k));
        std::vector<double> sums(static_cast<size_t>(k));
        cpu::select_product_keys(s1.data(), s2.data(), n, k, work, slots.data(), sums.data());
        std::vector<double> best;
        for (int64_t j = 0; j < k; ++j) { best.push_back(-all[static_cast<size_t>(j)].first); }
        CHECK(sums == best);
        CHECK(std::set<int32_t>(slots.begin(), slots.end()).size() == slots.size());
        if (levels == 1000u || k >= n) {
          for (int64_t j = 0; j < k; ++j) {
            CHECK(slots[static_cast<size_t>(j)] == all[static_cast<size_t>(j)].second);
          }
        }
      }
    }
  }
}

TEST_CASE("scores that are not numbers still select different slots", "[fast]") {
  constexpr int64_t kSubkeys = 23, kSlots = 17;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  cpu::ProductKeyWork<double> work;
  for (int64_t every = 1; every <= 5; ++every) {
    std::vector<double> s1, s2;
    for (int64_t i = 0; i < kSubkeys; ++i) {
      s1.push_back(i % every == 0 ? nan : static_cast<double>(i * 7 % 11));
      s2.push_back(i % (every + 1) == 0 ? nan : static_cast<double>(i * 5 % 13));
    }
    std::vector<int32_t> slots(kSlots);
    std::vector<double> sums(kSlots);
    cpu::select_product_keys(s1.data(), s2.data(), kSubkeys, kSlots, work, slots.data(), sums.data());
    CHECK(std::set<int32_t>(slots.begin(), slots.end()).size() == static_cast<size_t>(kSlots));
    for (const int32_t slot : slots) { CHECK((slot >= 0 && slot < kSubkeys * kSubkeys)); }
  }
}

TEST_CASE("only rows that were read have a gradient, and tokens are independent of their batch", "[fast]") {
  TestModel m(model(R"("num_subkeys": 9, "key_dim": 6, "value_dim": 4, "num_heads": 2, "top_k": 2)"), DType::f64, 3,
              0.5);
  const TraceInput input = random_input(3, 4, 19);
  const TraceOutput out = m.run(input, inside());
  const auto& slots = out.inside.at("blocks.0.ffn.slots");
  CHECK(slots.shape == std::vector<int64_t>{3, 4, 2, 2});
  const std::set<int64_t> read(slots.integers.begin(), slots.integers.end());
  const std::vector<double>& d_values = out.grads.at("blocks.0.ffn.values").values;
  for (int64_t slot = 0; slot < 81; ++slot) {
    bool any = false;
    for (int64_t i = 0; i < 4; ++i) { any = any || d_values[static_cast<size_t>(slot * 4 + i)] != 0; }
    CHECK(any == (read.count(slot) == 1));
  }
  const std::vector<double> alone = m.run(row_of(input, 1)).logits.values;
  CHECK(std::equal(alone.begin(), alone.end(), out.logits.values.begin() + 4 * 19));
}

TEST_CASE("forced slots are taken as given and give the same result as the choice they repeat", "[fast]") {
  TestModel m(model(R"("num_subkeys": 6, "key_dim": 4, "value_dim": 4, "num_heads": 1, "top_k": 2)"), DType::f64, 3,
              0.5);
  const TraceInput input = random_input(1, 5, 19);
  TraceOptions options = inside();
  const TraceOutput first = m.run(input, options);
  options.forced = first.inside;
  // 1e-13: scores of forced slots are summed in another order.
  check_close("logits", m.run(input, options).logits.values, first.logits.values, 1e-13);
  options.forced["blocks.0.ffn.slots"].integers[3] = 35;
  CHECK(compare(m.run(input, options).logits.values, first.logits.values).worst > 1e-6);
  options.forced["blocks.0.ffn.slots"].integers[3] = 36;
  CHECK_THROWS_WITH(m.run(input, options), Contains("found 36, expected 0 to 35"));
}

TEST_CASE("pkm refuses impossible configurations", "[fast]") {
  CHECK_THROWS_WITH(TestModel(model(R"("num_subkeys": 4, "key_dim": 5)")),
                    Contains("model.layers.p.key_dim: found 5, expected an even integer"));
  CHECK_THROWS_WITH(TestModel(model(R"("num_subkeys": 4, "top_k": 5)")),
                    Contains("model.layers.p.top_k: found 5, expected at most num_subkeys (4)"));
}
