// memory_stats against direct computations from recorded decisions (docs/evaluations/memories.md).
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "core/random.h"
#include "inspect/trace.h"
#include "tests/eval/eval_fixture.h"
#include "tests/test.h"

namespace {

std::string model_with(const std::string& role, const std::string& layer) {
  Json block = Json::object({{"mixer", "a"}, {"ffn", "m"}});
  block.set(role, "x");
  return R"({"vocab_size": 23, "hidden_size": 12, "num_layers": 2, "init_std": 0.4, "layers": {
    "a": {"type": "attention", "num_heads": 2, "head_dim": 6, "window": 9, "rope": {"theta": 100.0}},
    "m": {"type": "swiglu", "intermediate_size": 16}, "x": )" +
         layer + "}, \"pattern\": [" + block.dump() + "]}";
}

/// Two documents of 48 tokens or more among shorter ones.
struct Probe : EvalFixture {
  explicit Probe(const std::string& role, const std::string& layer)
      : EvalFixture(model_with(role, layer), {20, 70, 33, 48}) {}

  EvalResult stats(const std::string& keys = "") {
    const EvalResult r = run("\"kind\": \"memory_stats\", \"length\": 48" + keys);
    REQUIRE(r.status == "ok");
    return r;
  }
  /// The decisions on the first `length` tokens of the documents that are long enough, read one after the other.
  std::vector<std::map<std::string, Inspector::Record>> inside(int64_t length = 48, bool training = true) {
    ScoringModel s = load();
    std::vector<std::map<std::string, Inspector::Record>> all;
    for (const auto& d : documents) {
      if (static_cast<int64_t>(d.size()) < length) { continue; }
      TraceOptions options;
      options.inside = true;
      options.training = training;
      all.push_back(
          trace(s.model(), s.stream(), s.arena(), {1, length, {d.begin(), d.begin() + length}, {}, {}}, options)
              .inside);
    }
    return all;
  }
};

double group(const EvalResult& r, const std::string& layer, const std::string& name) {
  return r.groups.at(layer).at(name).at("value").as_double();
}

/// Points of a series that belong to `layer`.
std::vector<Json> points(const EvalResult& r, const std::string& series, const std::string& layer = "") {
  std::vector<Json> found;
  for (const Json& p : r.series.at(series).items()) {
    if (layer.empty() || p.at("layer").as_string() == layer) { found.push_back(p); }
  }
  return found;
}

double entropy_of(const std::map<int64_t, double>& mass) {
  double total = 0, h = 0;
  for (const auto& [key, m] : mass) { total += m; }
  for (const auto& [key, m] : mass) { h -= m / total * std::log(m / total); }
  return h;
}

/// Position (n - 1) p between order statistics.
double quantile_of(std::vector<double> v, double p) {
  std::sort(v.begin(), v.end());
  const double at = static_cast<double>(v.size() - 1) * p;
  const size_t i = static_cast<size_t>(std::floor(at));
  return i + 1 < v.size() ? v[i] * (1 - (at - std::floor(at))) + v[i + 1] * (at - std::floor(at)) : v[i];
}

}  // namespace

TEST_CASE("collision, coverage and divergence are means over complete windows", "[fast]") {
  for (
      const auto& [role, layer] :
      {std::pair{
           "memory",
           R"({"type": "fwpkm", "num_subkeys": 4, "key_dim": 4, "value_dim": 6, "top_k": 2, "num_heads": 2, "chunk_size": 10})"},
       std::pair{"ffn",
                 R"({"type": "pkm", "num_subkeys": 4, "key_dim": 4, "value_dim": 6, "top_k": 2, "num_heads": 2})"}}) {
    Probe f(role, layer);
    const EvalResult r = f.stats(R"(, "window_tokens": 20)");
    const std::string name = std::string("blocks.1.") + role;
    std::vector<int64_t> slots;  // of 96 tokens: windows cross the border of sequences, the last 16 are in none
    for (const auto& records : f.inside()) {
      const auto& own = records.at(name + ".slots").integers;
      slots.insert(slots.end(), own.begin(), own.end());
    }
    REQUIRE(slots.size() == 96 * 4);
    double collision = 0, coverage = 0, kld = 0;
    for (size_t window = 0; window < 4; ++window) {
      std::map<int64_t, double> count;
      for (size_t i = window * 80; i < (window + 1) * 80; ++i) { count[slots[i]] += 1; }
      for (const auto& [slot, c] : count) { collision += c > 1 ? c / 80 / 4 : 0.0; }
      coverage += static_cast<double>(count.size()) / 16 / 4;
      kld += (std::log(16.0) - entropy_of(count)) / 4;
    }
    CHECK(group(r, name, "collision") == Approx(collision).epsilon(1e-12));
    CHECK(group(r, name, "coverage") == Approx(coverage).epsilon(1e-12));
    CHECK(group(r, name, "kld") == Approx(kld).epsilon(1e-10));
    CHECK(r.groups.at(name).at("kld").at("n").as_int() == 4);
    const std::string type = role == std::string("ffn") ? "pkm" : "fwpkm";
    CHECK(metric(r, (type + ".kld").c_str()) ==
          Approx((group(r, name, "kld") + group(r, std::string("blocks.0.") + role, "kld")) / 2));
    CHECK(r.metrics.at(type + ".kld").at("n").as_int() == 2);  // layers
    CHECK(f.stats().groups.at(name).find("kld") == nullptr);   // no window of 32,768 tokens is complete
  }
}

TEST_CASE("gates are counted in ten bins, and fast weights move from sequence to sequence unless they are frozen",
          "[fast]") {
  Probe f("memory",
          R"({"type": "fwpkm", "num_subkeys": 4, "key_dim": 4, "value_dim": 6, "top_k": 2, "chunk_size": 10})");
  const EvalResult moving = f.stats(), frozen = f.stats(R"(, "freeze_fast_weights": true)");
  double share = 0, mean = 0;
  const std::vector<Json> bins = points(moving, "gate_histogram", "blocks.0.memory");
  REQUIRE(bins.size() == 10);
  for (const Json& bin : bins) {
    share += bin.at("share").as_double();
    mean += bin.at("share").as_double() * (bin.at("from").as_double() + 0.05);
    CHECK(bin.at("to").as_double() == Approx(bin.at("from").as_double() + 0.1));
  }
  CHECK(share == Approx(1));
  CHECK(std::abs(mean - group(moving, "blocks.0.memory", "gate_mean")) < 0.05);
  CHECK(group(moving, "blocks.0.memory", "memory_loss") > 0);
  CHECK(group(moving, "blocks.0.memory", "gate_mean") ==
        group(frozen, "blocks.0.memory", "gate_mean"));  // before any reading
  CHECK(group(moving, "blocks.1.memory", "gate_mean") != group(frozen, "blocks.1.memory", "gate_mean"));
  CHECK(frozen.groups.at("blocks.0.memory").find("memory_loss") == nullptr);
}

TEST_CASE("looking at states does not teach fast weights", "[fast]") {
  EvalFixture f(R"({"vocab_size": 23, "hidden_size": 12, "num_layers": 1, "init_std": 0.4, "layers": {
    "g": {"type": "gdn", "num_heads": 2, "key_head_dim": 4, "value_head_dim": 4},
    "f": {"type": "fwpkm", "num_subkeys": 4, "key_dim": 4, "value_dim": 6, "top_k": 2, "chunk_size": 10},
    "m": {"type": "swiglu", "intermediate_size": 16}}, "pattern": [{"memory": "f", "mixer": "g", "ffn": "m"}]})",
                {60, 60});
  ScoringModel s = f.load(), expected = f.load();
  const EvalResult r = evaluate(s, R"("kind": "memory_stats", "length": 48, "window_tokens": 96, )" + f.corpus());
  CHECK(points(r, "state_norm").size() == 16);
  std::map<int64_t, double> count;
  for (const auto& d : f.documents) {
    TraceOptions options;
    options.inside = true;
    const TraceInput input{1, 48, {d.begin(), d.begin() + 48}, {}, {}};
    const TraceOutput out = trace(expected.model(), expected.stream(), expected.arena(), input, options);
    for (const int64_t slot : out.inside.at("blocks.0.memory.slots").integers) { count[slot] += 1; }
  }
  CHECK(group(r, "blocks.0.memory", "kld") == Approx(std::log(16.0) - entropy_of(count)).epsilon(1e-10));
  CHECK(s.save_fast_weights() == expected.save_fast_weights());
}

TEST_CASE("sdm: shares of a token's slots, and use of all slots", "[fast]") {
  Probe f(
      "mixer",
      R"({"type": "sdm", "num_heads": 2, "slots_per_head": 16, "num_writes": 3, "num_reads": 6, "read_scale": 3.0})");
  const EvalResult r = f.stats();
  const auto inside = f.inside();
  for (const auto& [side, k] : {std::pair{std::string("read"), 6}, std::pair{std::string("write"), 3}}) {
    std::vector<double> all_effective, all_two;
    for (const char* name : {"blocks.0.mixer", "blocks.1.mixer"}) {
      std::vector<double> effective, two;
      std::map<int64_t, double> by_slot;
      for (const auto& records : inside) {
        const auto& slots = records.at(std::string(name) + "." + side + "_slots").integers;
        const auto& weights = records.at(std::string(name) + "." + side + "_weights").reals;
        for (size_t i = 0; i < slots.size(); i += static_cast<size_t>(k)) {
          std::map<int64_t, double> mass;
          for (size_t j = i; j < i + static_cast<size_t>(k); ++j) {
            mass[slots[j]] = weights[j];
            by_slot[slots[j] + 16 * static_cast<int64_t>(i / static_cast<size_t>(k) % 2)] += weights[j];
          }
          double sum = 0;
          std::vector<double> w;
          for (const auto& [slot, m] : mass) {
            w.push_back(m);
            sum += m;
          }
          CHECK(sum == Approx(1));  // a softmax
          std::sort(w.rbegin(), w.rend());
          effective.push_back(std::exp(entropy_of(mass)) / k);
          two.push_back(w[0] + w[1]);
        }
      }
      REQUIRE(effective.size() == 2 * 48 * 2);
      const auto mean = [](const std::vector<double>& v) {
        return std::accumulate(v.begin(), v.end(), 0.0) / static_cast<double>(v.size());
      };
      CHECK(group(r, name, "effective_" + side) == Approx(mean(effective)).epsilon(1e-12));
      CHECK(group(r, name, "effective_" + side + "_q10") == Approx(quantile_of(effective, 0.1)).epsilon(1e-12));
      CHECK(group(r, name, "cumulative_" + side + "_2") == Approx(mean(two)).epsilon(1e-12));
      CHECK(group(r, name, "unique_" + side) == static_cast<double>(by_slot.size()) / 32);
      CHECK(group(r, name, "entropy_" + side) == Approx(entropy_of(by_slot) / std::log(32.0)).epsilon(1e-12));
      all_effective.insert(all_effective.end(), effective.begin(), effective.end());
      all_two.insert(all_two.end(), two.begin(), two.end());
    }
    // Over both layers together: a median is not the mean of two.
    CHECK(metric(r, ("sdm.effective_" + side + "_median").c_str()) ==
          Approx(quantile_of(all_effective, 0.5)).epsilon(1e-12));
    CHECK(metric(r, ("sdm.cumulative_" + side + "_2_q90").c_str()) == Approx(quantile_of(all_two, 0.9)).epsilon(1e-12));
    for (const Json& p : points(r, "cumulative")) {
      if (p.at("side").as_string() == side && p.at("slots").as_int() == 2) {
        CHECK(p.at("q10").as_double() == Approx(quantile_of(all_two, 0.1)).epsilon(1e-12));
      }
      if (p.at("side").as_string() == side && p.at("slots").as_int() == k) {
        CHECK(p.at("mean").as_double() == Approx(1));
      }
    }
  }
  CHECK(group(r, "blocks.0.mixer", "forget_max") <= 1);
  CHECK(points(r, "state_norm", "blocks.0.mixer").size() == 16);
}

TEST_CASE("mamba2: the norm of the state by position, which the metric gives at the end", "[fast]") {
  Probe f("mixer", R"({"type": "mamba2", "num_heads": 2, "head_dim": 3, "state_dim": 4, "num_groups": 1})");
  const EvalResult r = f.stats();
  const std::vector<Json> norms = points(r, "state_norm", "blocks.0.mixer");
  REQUIRE(norms.size() == 16);
  CHECK(norms.back().at("tokens").as_int() == 48);
  CHECK(norms.front().at("norm").as_double() > 0);
  CHECK(norms.back().at("norm").as_double() == group(r, "blocks.0.mixer", "state_norm"));
}

TEST_CASE("ham: share of selected tokens by sequence, growth and scores by position", "[fast]") {
  Probe f(
      "mixer",
      R"({"type": "ham", "rnn": {"num_heads": 2, "key_head_dim": 6, "value_head_dim": 6}, "kv": {"num_heads": 2, "key_head_dim": 6,
    "value_head_dim": 6}, "router": {"type": "prediction_error"}, "threshold": {"mode": "fixed", "tau": 0.9}})");
  const EvalResult r = f.stats(R"(, "interval": 20, "single": 1)");
  const auto inside = f.inside(48, false);
  const std::string name = "blocks.1.mixer";
  double fraction = 0, at40 = 0, score = 0;
  for (size_t s = 0; s < 2; ++s) {
    const auto& mask = inside[s].at(name + ".mask").integers;
    const double own = static_cast<double>(std::count(mask.begin(), mask.end(), 1)) / 48;
    CHECK(points(r, "kv_fraction", name)[s].at("fraction").as_double() == Approx(own));
    fraction += own / 2;
    const auto cached = std::count(mask.begin(), mask.begin() + 40, 1);
    if (s == 0) { CHECK(points(r, "kv_growth_single", name)[1].at("cached").as_int() == cached); }
    at40 += static_cast<double>(cached) / 2;
    const auto& scores = inside[s].at(name + ".score").reals;
    score += std::accumulate(scores.begin() + 40, scores.end(), 0.0) / 16;
  }
  CHECK((fraction > 0 && fraction < 1));
  for (const std::string layer : {"blocks.0.mixer", "blocks.1.mixer"}) {
    std::vector<double> shares;
    for (const Json& point : points(r, "kv_fraction", layer)) { shares.push_back(point.at("fraction").as_double()); }
    CHECK(group(r, layer, "kv_fraction_min") == *std::min_element(shares.begin(), shares.end()));
    CHECK(group(r, layer, "kv_fraction_max") == *std::max_element(shares.begin(), shares.end()));
  }
  CHECK(group(r, name, "kv_fraction") == Approx(fraction).epsilon(1e-12));
  CHECK(metric(r, "ham.kv_fraction") ==
        Approx((fraction + group(r, "blocks.0.mixer", "kv_fraction")) / 2).epsilon(1e-12));
  REQUIRE(points(r, "kv_growth", name).size() == 2);
  CHECK(points(r, "kv_growth", name)[1].at("tokens").as_int() == 40);
  CHECK(points(r, "kv_growth", name)[1].at("cached").as_double() == Approx(at40));
  CHECK(points(r, "kv_growth_single", name).size() == 2);
  REQUIRE(points(r, "score_by_position", name).size() == 3);
  CHECK(points(r, "score_by_position", name)[2].at("score").as_double() == Approx(score).epsilon(1e-12));
  CHECK(group(r, name, "tau") == Approx(0.9));
  CHECK(group(r, name, "reset_fraction") >= 0);
}

TEST_CASE("ovq and kvm: slots in use by position, tokens per slot, bytes", "[fast]") {
  struct Case {
    std::string layer, record, name;
    int64_t delay;  // tokens of a chunk; kvm: they enter when the second chunk after them begins
  };
  for (
      const Case& c :
      {Case{R"({"type": "ovq", "num_heads": 2, "head_dim": 6, "chunk_size": 5, "max_centroids": 7})", "assign",
            "centroid_tokens", 5},
       Case{
           R"({"type": "kvm", "num_heads": 2, "head_dim": 6, "chunk_size": 4, "state": {"mode": "power", "factor": 2.0, "exponent": 0.5}})",
           "row", "row_tokens", 4}}) {
    Probe f("mixer", c.layer);
    const EvalResult r = f.stats(R"(, "state_interval": 7)");
    const std::string name = "blocks.1.mixer";
    const auto inside = f.inside(48, false);
    double largest = 0, tokens = 0, slots = 0, entropy = 0;
    for (const auto& records : inside) {
      const auto& ids = records.at(name + "." + c.record).integers;
      for (size_t head = 0; head < 2; ++head) {
        std::map<int64_t, double> count;
        for (size_t t = 0; t < 48; ++t) {
          if (ids[head * 48 + t] >= 0) { count[ids[head * 48 + t]] += 1; }
        }
        for (const auto& [slot, n] : count) {
          largest = std::max(largest, n);
          tokens += n;
        }
        slots += static_cast<double>(count.size());
        entropy += entropy_of(count) / std::log(static_cast<double>(count.size())) / 4;
      }
    }
    CHECK(group(r, name, c.name + "_max") == largest);
    CHECK(group(r, name, c.name + "_mean") == Approx(tokens / slots).epsilon(1e-12));
    CHECK(group(r, name, c.name + "_entropy") == Approx(entropy).epsilon(1e-12));
    const std::vector<Json> curve = points(r, "slots_by_position", name);
    REQUIRE(curve.size() == 7);
    ScoringModel s = f.load();
    for (const Json& p : curve) {
      const int64_t t = p.at("tokens").as_int();
      // ovq folds a chunk in when it is full; kvm's window is two chunks, of which the first leaves when a third
      // begins.
      const int64_t entered = c.record == "assign" ? t / 5 * 5 : std::max<int64_t>(0, ((t - 1) / 4 - 1) * 4);
      std::set<int64_t> used;
      for (int64_t i = 0; i < entered; ++i) {
        used.insert(inside[0].at(name + "." + c.record).integers[static_cast<size_t>(i)]);
      }
      CHECK(p.at("slots").as_double() == static_cast<double>(used.size()));
      CHECK(p.at("bytes").as_int() == s.model().blocks()[1].mixer->state_bytes(t));
    }
  }
}

TEST_CASE("gdn: the norm of the state by position is that of the recurrence", "[fast]") {
  EvalFixture f(R"({"vocab_size": 23, "hidden_size": 12, "num_layers": 1, "init_std": 0.4, "layers": {
    "g": {"type": "gdn", "num_heads": 2, "key_head_dim": 4, "value_head_dim": 3, "conv_size": 0, "activation": "none"},
    "m": {"type": "swiglu", "intermediate_size": 16}}, "pattern": [{"mixer": "g", "ffn": "m"}]})",
                {20});
  const EvalResult r = f.run(R"("kind": "memory_stats", "length": 17, "state_interval": 17)");
  ScoringModel s = f.load();
  const auto parameter = [&](const char* name) {
    return to_host(s.stream(), s.model().params().find(name)->value).values;
  };
  const auto embed = parameter("embed.weight"), wk = parameter("blocks.0.mixer.k_proj.weight"),
             wv = parameter("blocks.0.mixer.v_proj.weight"), wa = parameter("blocks.0.mixer.a_proj.weight"),
             wb = parameter("blocks.0.mixer.b_proj.weight"), a_log = parameter("blocks.0.mixer.A_log"),
             dt = parameter("blocks.0.mixer.dt_bias");
  double state[2][4][3] = {};
  for (size_t t = 0; t < 17; ++t) {
    const double* h = embed.data() + 12 * f.documents[0][t];
    double square = 0;
    for (int i = 0; i < 12; ++i) { square += h[i] * h[i] / 12; }
    const auto project = [&](const std::vector<double>& w, size_t row) {
      double sum = 0;
      for (size_t i = 0; i < 12; ++i) { sum += w[row * 12 + i] * h[i] / std::sqrt(square + 1e-5); }
      return sum;
    };
    for (size_t head = 0; head < 2; ++head) {
      double k[4], length = 0;
      for (size_t i = 0; i < 4; ++i) { length += std::pow(k[i] = project(wk, head * 4 + i), 2); }
      const double decay = std::exp(-std::exp(a_log[head]) * std::log1p(std::exp(project(wa, head) + dt[head])));
      const double beta = 1 / (1 + std::exp(-project(wb, head)));
      for (size_t j = 0; j < 3; ++j) {
        double held = 0;
        for (size_t i = 0; i < 4; ++i) { held += k[i] / std::sqrt(length) * decay * state[head][i][j]; }
        for (size_t i = 0; i < 4; ++i) {
          state[head][i][j] =
              decay * state[head][i][j] + beta * k[i] / std::sqrt(length) * (project(wv, head * 3 + j) - held);
        }
      }
    }
  }
  double norm = 0;
  for (auto& head : state) {
    double square = 0;
    for (auto& row : head) {
      for (const double x : row) { square += x * x; }
    }
    norm += std::sqrt(square) / 2;
  }
  REQUIRE(r.series.at("state_norm").items().size() == 1);
  CHECK(r.series.at("state_norm").items()[0].at("tokens").as_int() == 17);
  CHECK(metric(r, "gdn.state_norm") ==
        Approx(norm).epsilon(1e-5));  // the l2 norm's eps, which the loop above leaves out
}

TEST_CASE("the line of a result names a dozen numbers, its file all", "[fast]") {
  Probe f("mixer", R"({"type": "sdm", "num_heads": 1, "slots_per_head": 16, "num_writes": 2, "num_reads": 2})");
  ScoringModel s = f.load();
  std::string line;
  const std::string list = R"({"name": "x", "kind": "memory_stats", "length": 48, )" + f.corpus() + "}";
  REQUIRE(run_list(s, list, f.folder / "out", nullptr, false, [&](const std::string& text) { line = text; }).failed ==
          0);
  const Json result = result_in(f.folder / "out", "x");
  const size_t all = result.at("metrics").members().size();
  CHECK_THAT(line,
             Contains("x (memory_stats): ok  sdm.") && Catch::EndsWith("and " + std::to_string(all - 12) + " more"));
  CHECK(result.at("groups").at("blocks.1.mixer").at("unique_read").at("n").as_int() == 96);
}

TEST_CASE("rows take every token, and what cannot be read is said", "[fast]") {
  Probe f("ffn", R"({"type": "pkm", "num_subkeys": 4, "key_dim": 4, "value_dim": 6, "top_k": 2})");
  CHECK(metric(f.stats(), "sequences") == 2);
  CHECK(metric(f.stats(R"(, "max_sequences": 1)"), "tokens") == 48);
  CHECK(metric(f.run(R"("kind": "memory_stats", "cut": "rows", "length": 19)"), "sequences") == 8);
  CHECK(metric(f.run(R"("kind": "memory_stats", "cut": "rows", "length": 19, "max_sequences": 100)"), "sequences") ==
        171 / 19);
  CHECK_THROWS_WITH(f.run(R"("kind": "memory_stats", "length": 71)"),
                    Contains("found documents of fewer tokens, expected one of at least 71, or \"cut\": \"rows\""));
  CHECK_THROWS_WITH(f.run(R"("kind": "memory_stats", "cut": "rows", "length": 172)"),
                    Contains("found 171 tokens, expected at least 172"));
  Probe plain("mixer", R"({"type": "attention", "num_heads": 2, "head_dim": 6})");
  CHECK_THROWS_WITH(plain.run(R"("kind": "memory_stats", "length": 48)"),
                    Contains("memory_stats: found a model without layers that report statistics"));
}

TEST_CASE("selection: scores and shares of needles, of what repeats and of what is behind a needle", "[fast]") {
  Probe f("mixer", R"({"type": "ham", "rnn": {"num_heads": 2, "key_head_dim": 6, "value_head_dim": 6},
    "kv": {"num_heads": 2, "key_head_dim": 6, "value_head_dim": 6}, "threshold": {"mode": "fixed", "tau": 0.4}})");
  ScoringModel s = f.load();
  const EvalResult r =
      evaluate(s, R"("kind": "selection", "seed": 5, "length": 40, "rows": 3, "pattern": 4, "needles": 2, "needle": 3,
    "after": 2, "first_id": 2)");
  REQUIRE(r.status == "ok");
  const std::vector<std::string> names{"first", "repeated", "needle", "after"};
  std::vector<double> score(4), kept(4);  // means over rows of blocks.1
  for (uint64_t k = 0; k < 3; ++k) {
    Rng rng(5, "selection", k);
    const std::vector<uint32_t> ids = rng.sample(21, 10);
    std::vector<uint32_t> places = rng.sample(34 - 8 - 2, 2);
    std::sort(places.begin(), places.end());
    std::vector<int32_t> tokens;
    std::vector<size_t> groups;
    for (uint32_t i = 0; i < 34; ++i) {
      for (size_t j = 0; j < 2; ++j) {
        for (size_t n = 0; n < 3 && i == 8 + places[j]; ++n) {
          tokens.push_back(static_cast<int32_t>(2 + ids[4 + 3 * j + n]));
          groups.push_back(2);
        }
      }
      const bool is_after = (i >= 8 + places[0] && i < 10 + places[0]) || (i >= 8 + places[1] && i < 10 + places[1]);
      tokens.push_back(static_cast<int32_t>(2 + ids[i % 4]));
      groups.push_back(i < 4 ? 0 : is_after ? 3 : 1);
    }
    REQUIRE(tokens.size() == 40);
    TraceOptions options;
    options.inside = true;
    const auto inside =
        trace(s.model(), s.stream(), s.arena(), {1, 40, {tokens.begin(), tokens.end()}, {}, {}}, options).inside;
    for (size_t g = 0; g < 4; ++g) {
      double n = 0, of_score = 0, of_kept = 0;
      for (size_t t = 0; t < 40; ++t) {
        if (groups[t] != g) { continue; }
        n += 1;
        of_score += inside.at("blocks.1.mixer.score").reals[t];
        of_kept += static_cast<double>(inside.at("blocks.1.mixer.mask").integers[t]);
      }
      score[g] += of_score / n / 3;
      kept[g] += of_kept / n / 3;
    }
  }
  for (size_t g = 0; g < 4; ++g) {
    INFO(names[g]);
    CHECK(group(r, "blocks.1.mixer", "score." + names[g]) == Approx(score[g]).epsilon(1e-12));
    CHECK(group(r, "blocks.1.mixer", "kept." + names[g]) == Approx(kept[g]).epsilon(1e-12));
    CHECK(metric(r, ("kept." + names[g]).c_str()) ==
          Approx((kept[g] + group(r, "blocks.0.mixer", "kept." + names[g])) / 2).epsilon(1e-12));
  }
  const EvalResult nothing_after = evaluate(
      s, R"("kind": "selection", "length": 40, "rows": 1, "pattern": 4, "needles": 2, "needle": 3, "after": 0)");
  CHECK(nothing_after.metrics.find("score.after") == nullptr);
  CHECK(nothing_after.metrics.find("score.needle") != nullptr);
  CHECK_THROWS_WITH(evaluate(s, R"("kind": "selection", "length": 38)"),
                    Contains("length: found 38, expected at least 42"));
  CHECK_THROWS_WITH(evaluate(s, R"("kind": "selection", "length": 48, "first_id": 4)"),
                    Contains("first_id: found 4, expected at most 3: 20 ids are drawn"));
  Probe plain("mixer", R"({"type": "attention", "num_heads": 2, "head_dim": 6})");
  ScoringModel without = plain.load();
  CHECK_THROWS_WITH(evaluate(without, R"("kind": "selection", "length": 48)"),
                    Contains("selection: found a model without layers that select tokens"));
}
