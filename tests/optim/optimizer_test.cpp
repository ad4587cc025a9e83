#include "optim/optimizer.h"

#include <cmath>
#include <limits>
#include <map>

#include "core/error.h"
#include "tests/test.h"

namespace {

OptimizerConfig read(const std::string& json) {
  return Fields::read<OptimizerConfig>(parse_json(json, "test.json"), "optimizer");
}

/// A store with a matrix, an exempt matrix and a vector, values and gradients from a stream. No padding follows the
/// first.
struct Fixture {
  explicit Fixture(const OptimizerConfig& config, DType dtype = DType::f64, const ScheduleConfig& schedule = {})
      : arena(DeviceKind::cpu) {
    params.declare({"a.weight", {8, 6}, init::normal(1.0)});
    params.declare({"b.exempt", {3, 6}, init::normal(1.0), ParamKind::trained, true});
    params.declare({"c.bias", {11}, init::normal(1.0)});
    params.declare({"d.fast", {4}, init::normal(1.0), ParamKind::fast});
    params.allocate(arena, dtype, true);
    params.initialize(stream, 3);
    params.zero_grads(stream);
    optimizer.emplace(config, Schedule(schedule, config.lr, 100), params, arena);
  }
  std::vector<double> get(const Tensor& t) {
    std::vector<double> values(static_cast<size_t>(t.numel()));
    dispatch_real(t.dtype, [&]<class S>(S) { std::copy_n(t.as<S>(), values.size(), values.begin()); });
    return values;
  }
  void set_grads(int64_t step) {
    for (const auto& p : params.all()) {
      if (!p->trained()) { continue; }
      Rng rng(9, p->name(), static_cast<uint64_t>(step));
      dispatch_real(p->grad.dtype, [&]<class S>(S) {
        for (int64_t i = 0; i < p->grad.numel(); ++i) { p->grad.as<S>()[i] = static_cast<S>(rng.normal()); }
      });
      p->reached = true;
    }
  }
  GradientNorms step(int64_t s) {
    optimizer->step(stream, s);
    return optimizer->finish(stream).norms;
  }
  Param& param(const std::string& name) { return *params.find(name); }

  Stream stream;
  Arena arena;
  ParamStore params;
  std::optional<Optimizer> optimizer;
};

/// The reference: AdamW of one tensor in double.
struct Reference {
  std::vector<double> p, m, v;
  int64_t t = 0;
  void step(const std::vector<double>& grad, double clip, double lr, double b1, double b2, double eps, double decay) {
    ++t;
    m.resize(p.size());
    v.resize(p.size());
    for (size_t i = 0; i < p.size(); ++i) {
      const double g = clip * grad[i];
      m[i] = b1 * m[i] + (1 - b1) * g;
      v[i] = b2 * v[i] + (1 - b2) * g * g;
      p[i] = p[i] * (1 - lr * decay);
      p[i] -= lr * (m[i] / (1 - std::pow(b1, double(t)))) / (std::sqrt(v[i] / (1 - std::pow(b2, double(t)))) + eps);
    }
  }
};

void check_close(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    INFO("element " << i);
    CHECK(std::abs(a[i] - b[i]) <= tolerance);
  }
}

double norm_of(const std::vector<std::vector<double>>& tensors) {
  double sum = 0;
  for (const auto& t : tensors) {
    for (const double x : t) { sum += x * x; }
  }
  return std::sqrt(sum);
}

}  // namespace

TEST_CASE("AdamW with decay and clipping equals the reference in double", "[fast]") {
  const OptimizerConfig config = read(R"({"lr": 0.01, "weight_decay": 0.3, "clip_norm": 0.7})");
  ScheduleConfig schedule;
  schedule.warmup_steps = 4;
  const Schedule lr(schedule, config.lr, 100);
  for (const DType dtype : {DType::f64, DType::f32}) {
    Fixture f(config, dtype, schedule);
    std::map<std::string, Reference> reference;
    for (const auto& p : f.params.all()) { reference[p->name()].p = f.get(p->value); }
    for (int64_t s = 0; s < 6; ++s) {
      f.set_grads(s);
      const auto a = f.get(f.param("a.weight").grad), b = f.get(f.param("b.exempt").grad),
                 c = f.get(f.param("c.bias").grad);
      const double norm = norm_of({a, b, c}), clip = std::min(1.0, 0.7 / (norm + 1e-6));
      CHECK(f.step(s).global == Catch::Approx(norm).epsilon(1e-12));
      reference["a.weight"].step(a, clip, lr(s), 0.9, 0.95, 1e-8, 0.3);
      reference["b.exempt"].step(b, clip, lr(s), 0.9, 0.95, 1e-8, 0);
      reference["c.bias"].step(c, clip, lr(s), 0.9, 0.95, 1e-8, 0);
    }
    // Double: other order of operations. Float: rounding of values of size 1 over six steps.
    const double tolerance = dtype == DType::f64 ? 1e-13 : 2e-6;
    for (const auto& p : f.params.all()) {
      check_close(f.get(p->value), reference[p->name()].p, tolerance);
      CHECK(p->updates == (p->trained() ? 6 : 0));
    }
  }
}

TEST_CASE("clipping scales the gradient to the limit and leaves smaller ones alone", "[fast]") {
  for (const double limit : {0.0, 0.5, 1e6}) {  // 0: off
    OptimizerConfig config = read(R"({"lr": 0.01, "weight_decay": 0, "betas": [0, 0], "eps": 1})");
    config.clip_norm = limit;
    Fixture f(config);
    f.set_grads(0);
    const std::vector<double> grad = f.get(f.param("c.bias").grad);
    const double norm = f.step(0).global, c = limit == 0.5 ? limit / (norm + 1e-6) : 1.0;
    const std::vector<double> m = f.get(f.param("c.bias").m);  // betas 0: the clipped gradient
    for (size_t i = 0; i < m.size(); ++i) { CHECK(m[i] == Catch::Approx(c * grad[i]).epsilon(1e-14)); }
  }
}

TEST_CASE("a parameter that the loss does not reach is left alone, a zero gradient is not", "[fast]") {
  Fixture f(read(R"({"lr": 0.01, "weight_decay": 0.5})"));
  f.set_grads(0);
  f.param("b.exempt").reached = false;
  fill_zero(f.stream, f.param("a.weight").grad);
  const auto a = f.get(f.param("a.weight").value), b = f.get(f.param("b.exempt").value);
  f.step(0);
  CHECK(f.param("b.exempt").updates == 0);
  CHECK(f.get(f.param("b.exempt").value) == b);
  CHECK(f.param("a.weight").updates == 1);
  CHECK(f.get(f.param("a.weight").value)[0] == Catch::Approx(a[0] * (1 - 0.01 * 0.5)).epsilon(1e-14));
}

TEST_CASE("matrices decay unless exempt, and only force_decay changes that", "[fast]") {
  const auto decay = [](const std::string& json, const std::string& name) {
    Fixture f(read(json));
    for (const Optimizer::Rule& rule : f.optimizer->rules()) {
      if (rule.param->name() == name) { return rule.weight_decay; }
    }
    return -1.0;
  };
  const std::string plain = R"({"lr": 1, "weight_decay": 0.5})";
  CHECK(decay(plain, "a.weight") == 0.5);
  CHECK(decay(plain, "b.exempt") == 0);
  CHECK(decay(plain, "c.bias") == 0);
  CHECK(decay(R"({"lr": 1, "weight_decay": 0.5, "no_decay": ["x", "wei.ht$"]})", "a.weight") == 0);
  const std::string groups = R"({"lr": 1, "no_decay": ["a"], "groups": [{"match": "a|c", "weight_decay": 0.2},
                               {"match": "b", "weight_decay": 0.3, "force_decay": true}]})";
  CHECK(decay(groups, "a.weight") == 0);
  CHECK(decay(groups, "b.exempt") == 0.3);
}

TEST_CASE("groups: the first match wins, what is absent is inherited, the schedule can be off", "[fast]") {
  ScheduleConfig schedule;
  schedule.warmup_steps = 2;
  Fixture f(read(R"({"lr": 0.01, "weight_decay": 0, "clip_norm": 0, "groups": [
      {"match": "^a", "lr": 0.04}, {"match": "bias$", "lr": 0.03, "schedule": false, "betas": [0.5, 0.6], "eps": 0.1},
      {"match": "a", "lr": 7}]})"),
            DType::f64, schedule);
  const auto& rules = f.optimizer->rules();
  CHECK(rules[0].group == 0);
  CHECK(rules[0].beta1 == 0.9);
  CHECK(rules[1].group == -1);
  CHECK(rules[2].group == 1);
  CHECK(rules[2].beta2 == 0.6);
  CHECK(rules[2].eps == 0.1);
  CHECK(f.optimizer->unused_groups() == std::vector<size_t>{2});
  const double a = f.get(f.param("a.weight").value)[0], b = f.get(f.param("b.exempt").value)[0];
  f.set_grads(0);
  f.step(0);
  CHECK(std::abs(f.get(f.param("a.weight").value)[0] - a) == Catch::Approx(0.02).epsilon(1e-4));
  CHECK(std::abs(f.get(f.param("b.exempt").value)[0] - b) == Catch::Approx(0.005).epsilon(1e-4));
}

TEST_CASE("a group with its own clip_norm has its own norm and leaves the global one", "[fast]") {
  Fixture f(read(R"({"lr": 0.01, "groups": [{"match": "exempt", "clip_norm": 0.25}]})"));
  f.set_grads(0);
  const auto a = f.get(f.param("a.weight").grad), b = f.get(f.param("b.exempt").grad),
             c = f.get(f.param("c.bias").grad);
  const GradientNorms norms = f.step(0);
  CHECK(norms.global == Catch::Approx(norm_of({a, c})).epsilon(1e-12));
  REQUIRE(norms.groups.size() == 1);
  CHECK(norms.groups[0].second == Catch::Approx(norm_of({b})).epsilon(1e-12));
  CHECK(f.get(f.param("b.exempt").m)[0] == Catch::Approx(0.1 * b[0] * 0.25 / (norm_of({b}) + 1e-6)).epsilon(1e-12));
}

TEST_CASE("neighbours of a clip set are summed by one launch", "[fast]") {
  const auto launches = [](const std::string& groups) {
    Fixture f(read(R"({"lr": 0.1, "groups": [)" + groups + "]}"));
    f.set_grads(0);
    const int64_t before = f.stream.launches;
    f.optimizer->step(f.stream, 0);
    return f.stream.launches - before;
  };
  CHECK(launches("") == 1 + 1 + 3);  // sums, decision, AdamW of three parameters
  CHECK(launches(R"({"match": "^b", "clip_norm": 2})") == 3 + 1 + 3);
}

TEST_CASE("weight decay can follow the learning rate", "[fast]") {
  ScheduleConfig schedule;
  schedule.warmup_steps = 4;
  Fixture f(read(R"({"lr": 0.1, "weight_decay": 0.2, "weight_decay_follows_lr": true})"), DType::f64, schedule);
  const double before = f.get(f.param("a.weight").value)[0];
  f.set_grads(0);
  fill_zero(f.stream, f.param("a.weight").grad);
  f.step(0);  // lr 0.025, decay 0.05
  CHECK(f.get(f.param("a.weight").value)[0] == Catch::Approx(before * (1 - 0.025 * 0.05)).epsilon(1e-14));
}

TEST_CASE("a gradient that is not finite makes its norm not finite and the step change nothing", "[fast]") {
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    Fixture f(read(R"({"lr": 0.01, "groups": [{"match": "c", "clip_norm": 1}]})"));
    f.set_grads(0);
    CHECK(f.step(0).finite());
    f.param("c.bias").grad.as<double>()[10] = bad;
    std::vector<std::vector<double>> before;
    for (const auto& p : f.params.all()) { before.push_back(f.get(p->value)); }
    const std::vector<double> m = f.get(f.param("a.weight").m), v = f.get(f.param("a.weight").v);
    f.optimizer->step(f.stream, 1);
    CHECK(*f.optimizer->applies().as<double>() == 0);
    const StepOutcome outcome = f.optimizer->finish(f.stream);
    CHECK_FALSE(outcome.applied);
    CHECK(std::isfinite(outcome.norms.global));
    CHECK_FALSE(outcome.norms.finite());
    for (size_t i = 0; i < before.size(); ++i) { CHECK(f.get(f.params.all()[i]->value) == before[i]); }
    CHECK(f.get(f.param("a.weight").m) == m);
    CHECK(f.get(f.param("a.weight").v) == v);
    CHECK(f.param("a.weight").updates == 1);
  }
}

TEST_CASE("a step applies if its loss is finite, whatever the gradients are", "[fast]") {
  Fixture f(read(R"({"lr": 0.01})"));
  const Buffer losses(f.arena, {3}, DType::f64, "losses"), scale(f.arena, {1}, DType::f64, "scale");
  const double values[] = {1.5, 0, 3}, third = 1.0 / 3, nan = std::nan("");
  copy_to_device(f.stream, losses, values);
  copy_to_device(f.stream, scale, &third);
  f.set_grads(0);
  f.optimizer->step(f.stream, 0, losses, scale);
  StepOutcome outcome = f.optimizer->finish(f.stream);
  CHECK(outcome.loss == (1.5 + 0 + 3) * third);
  CHECK(outcome.applied);
  copy_to_device(f.stream, scale, &nan);
  f.optimizer->step(f.stream, 1, losses, scale);
  outcome = f.optimizer->finish(f.stream);
  CHECK(std::isnan(outcome.loss));
  CHECK_FALSE(outcome.applied);
  CHECK(f.param("a.weight").updates == 1);
}

TEST_CASE("updates of a state that its own optimizer moved are counted with the step", "[fast]") {
  Stream stream;
  Arena arena(DeviceKind::cpu);
  ParamStore params;
  params.declare({"a.weight", {2, 3}, init::normal(1.0)});
  Param& threshold = params.declare({"threshold", {1}, init::normal(1.0), ParamKind::state});
  params.allocate(arena, DType::f32, true);
  params.initialize(stream, 3);
  params.zero_grads(stream);
  const OptimizerConfig config = read(R"({"lr": 0.01})");
  Optimizer optimizer(config, Schedule({}, config.lr, 100), params, arena);
  optimizer.step(stream, 0);
  optimizer.finish(stream);
  CHECK(threshold.updates == 0);
  threshold.reached = true;
  optimizer.step(stream, 1);
  optimizer.finish(stream);
  CHECK(threshold.updates == 1);
}

TEST_CASE("optimizer settings out of range name their key", "[fast]") {
  CHECK_THROWS_WITH(read(R"({})"), Catch::Contains("optimizer.lr"));
  CHECK_THROWS_WITH(read(R"({"lr": 0})"), Catch::Contains("optimizer.lr") && Catch::Contains("> 0"));
  CHECK_THROWS_WITH(read(R"({"lr": 1, "betas": [0.9]})"), Catch::Contains("optimizer.betas"));
  CHECK_THROWS_WITH(read(R"({"lr": 1, "betas": [0.9, 1]})"), Catch::Contains("optimizer.betas.1"));
  CHECK_THROWS_WITH(read(R"({"lr": 1, "no_decay": ["("]})"),
                    Catch::Contains("optimizer.no_decay.0") && Catch::Contains("regular expression"));
  CHECK_THROWS_WITH(read(R"({"lr": 1, "groups": [{"match": "["}]})"), Catch::Contains("optimizer.groups.0.match"));
  CHECK_THROWS_WITH(read(R"({"lr": 1, "groups": [{"match": "a", "betas": [0.1]}]})"),
                    Catch::Contains("optimizer.groups.0.betas"));
  CHECK_THROWS_WITH(read(R"({"lr": 1, "wieght_decay": 0})"), Catch::Contains("weight_decay"));
}
