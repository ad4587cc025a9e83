#include "study/ladder/sweep.h"

#include <algorithm>

#include "study/ladder/expression.h"
#include "tests/study/sweep_fixture.h"
#include "tests/thrown.h"

namespace {

double value(const std::string& text) {
  return evaluate(
      text, [](const std::string& name) { return name == "train.batch_size" ? std::optional(6.0) : std::nullopt; },
      "sweep.json: derive.x");
}

}  // namespace

TEST_CASE("expressions follow the usual precedence and round towards minus infinity", "[fast]") {
  CHECK(value("1 + 2 * 3 - 4 / 8") == 6.5);
  CHECK(value("-(2 + 1) * -2") == 6);
  CHECK(value("-7 // 2") == -4);
  CHECK(value("-7 % 3") == 2);
  CHECK(value("ceil(1.2) + floor(-1.2) + round(2.5) + round(-2.5)") == 2 - 2 + 3 - 2);
  CHECK(value("min(3, 1, 2) + max(1, train.batch_size)") == 7);
  CHECK(value("sqrt(16) * log2(8) * 1e2") == 1200);
  CHECK(number_json(12.0).dump() == "12");
  CHECK(number_json(0.5).dump() == "0.5");
}

TEST_CASE("an expression that cannot be evaluated names its place and text", "[fast]") {
  CHECK_THROWS_WITH(value("1 + "), Contains("sweep.json: derive.x") && Contains("the end of \"1 + \""));
  CHECK_THROWS_WITH(value("1 2"), Contains("\"2\" in \"1 2\"") && Contains("an operator or the end"));
  CHECK_THROWS_WITH(value("train.batches * 2"), Contains("train.batches in"));
  CHECK_THROWS_WITH(value("4 // (1 - 1)"), Contains("division by 0"));
  CHECK_THROWS_WITH(value("log2(0)"), Contains("log2 of 0") && Contains("expected a number > 0"));
  CHECK_THROWS_WITH(value("min(7, sqrt(1 - 2))"), Contains("sqrt of -1") && Contains("expected a number >= 0"));
  CHECK_THROWS_WITH(value("1e300 * 1e300"), Contains("not finite"));
  CHECK_THROWS_WITH(value("cube(3)"), Contains("the function cube"));
  CHECK_THROWS_WITH(value("min(3)"), Contains("min of 1 values") && Contains("two or more"));
  CHECK_THROWS_WITH(value("(3"), Contains("\")\""));
}

TEST_CASE("an expression has a greatest depth", "[fast]") {
  const auto nested = [](size_t depth) { return std::string(depth, '(') + "1" + std::string(depth, ')'); };
  CHECK(value(nested(99)) == 1);
  const std::string deeper = "found more than 100 levels of nesting in \"", most = "\"..., expected at most 100";
  CHECK_THROWS_WITH(value(nested(100)), Contains(deeper) && Contains(most));
  CHECK_THROWS_WITH(value(nested(1000000)), Contains(deeper));
  CHECK_THROWS_WITH(value(std::string(1000000, '-') + "1"), Contains(deeper));
  std::string calls;
  for (int i = 0; i < 10000; ++i) { calls += "min("; }
  CHECK_THROWS_WITH(value(calls), Contains(deeper));
}

TEST_CASE("a configuration that exists under its name is no pattern", "[fast]") {
  const SweepFolder folder;
  folder.write("a[1].json", R"({"extends": "base.json", "train": {"seed": 3}})");
  folder.write("a1.json", R"({"extends": "base.json"})");
  const Sweep sweep = read_sweep(folder.write("one.json", R"({"name": "one", "runs": [
    {"config": "a[1].json"}, {"id": "named", "config": "a[1].json"}]})"));
  CHECK(ids_of(sweep) == std::vector<std::string>{"a[1]", "named"});
  CHECK(run_of(sweep, "a[1]").config.at("train").at("seed").as_int() == 3);
}

TEST_CASE("runs start from configurations of their own, by name or by pattern", "[fast]") {
  const SweepFolder folder;
  folder.write("L1-full.json", R"({"extends": "base.json", "optimizer": {"lr": 0.001}})");
  folder.write("L2-full.json", R"({"extends": "base.json", "optimizer": {"lr": 0.002}})");
  folder.write("L2-gdn.json", R"({"extends": "base.json", "model": {"pattern": [{"mixer": "gdn", "ffn": "mlp"}]}})");
  folder.write("L2-full-long.json", "{}");  // another name: no tag matches a "-"
  const Sweep one = read_sweep(folder.write("one.json", R"({"name": "one", "runs": [
    {"config": "L{level}-{arch}.json", "set": {"train.seed": 7}},
    {"id": "own", "config": "L1-full.json", "tags": {"arch": "own"}}]})"));
  CHECK(ids_of(one) == std::vector<std::string>{"L1-full", "L2-full", "L2-gdn", "own"});
  CHECK(run_of(one, "L2-full").config.at("optimizer").at("lr").as_double() == 0.002);
  CHECK(run_of(one, "L2-full").config.at("name").as_string() == "L2-full");
  CHECK(run_of(one, "L2-gdn").config.at("train").at("seed").as_int() == 7);
  folder.write("decay.json", R"({"extends": "base.json", "optimizer": {"weight_decay": 0.7}})");
  const Sweep null = read_sweep(folder.write("null.json", R"({"name": "null", "runs": [
    {"id": "a", "config": "decay.json", "set": {"optimizer.weight_decay": null}}]})"));
  const Json* decay = run_of(null, "a").config.at("optimizer").find("weight_decay");
  CHECK((decay == nullptr || decay->as_double() != 0.7));
  CHECK(run_of(one, "own").config.at("train").at("seed").as_int() == 5);
  CHECK(run_of(one, "L2-gdn").tags.dump() == R"({"level":"2","arch":"gdn"})");
  const Sweep two = read_sweep(folder.write("two.json", R"({"name": "two", "grid": {"train.seed": [1, 2]}, "runs": [
    {"config": "L[12]-*l.json"}]})"));
  CHECK(ids_of(two) ==
        std::vector<std::string>{"L1-full_seed=1", "L1-full_seed=2", "L2-full_seed=1", "L2-full_seed=2"});
  const auto wrong = [&](const std::string& members) {
    const fs::path file = folder.write("wrong.json", R"({"name": "wrong", )" + members + "}");
    return thrown<ConfigError>([&] { read_sweep(file); });
  };
  CHECK_THAT(wrong(R"("runs": [{"config": "M*.json"}])"), Contains("runs.0.config: found no file that matches"));
  CHECK_THAT(wrong(R"("runs": [{"config": "L*.json", "id": "a"}])"), Contains("runs.0.id"));
  CHECK_THAT(wrong(R"("runs": [{"id": "a"}])"), Contains("base"));
  CHECK_THAT(wrong(R"("base": "base.json", "runs": [{"config": "L1-full.json"}])"), Contains("base"));
  CHECK_THAT(wrong(R"("runs": [{}], "base": "base.json")"), Contains("runs.0.id"));
}

TEST_CASE("runs are multiplied by the grid, whose last key varies fastest", "[fast]") {
  const SweepFolder folder;
  const Sweep sweep = read_sweep(write_sweep(
      folder, R"("runs": [{"id": "a", "tags": {"arch": "full"}}, {"id": "b", "set": {"model.pattern.0.mixer": "gdn"}}],
    "grid": {"optimizer.lr": [0.01, 2e-3], "model.layers.mlp.intermediate_size": [8, 16]})"));
  CHECK(ids_of(sweep) == std::vector<std::string>{"a_lr=0.01_intermediate_size=8", "a_lr=0.01_intermediate_size=16",
                                                  "a_lr=0.002_intermediate_size=8", "a_lr=0.002_intermediate_size=16",
                                                  "b_lr=0.01_intermediate_size=8", "b_lr=0.01_intermediate_size=16",
                                                  "b_lr=0.002_intermediate_size=8", "b_lr=0.002_intermediate_size=16"});
  const Json& last = sweep.runs.back().config;
  CHECK(last.at("model").at("pattern").items()[0].at("mixer").as_string() == "gdn");
  CHECK(last.at("optimizer").at("lr").as_double() == 2e-3);
  CHECK(last.at("name").as_string() == sweep.runs.back().id);
  CHECK(sweep.runs[0].tags.at("arch").as_string() == "full");
  CHECK(fs::path(last.at("data").at("sources").items()[0].at("path").as_string()) ==
        folder / "tokens.bin");  // absolute
}

TEST_CASE("paths in the evaluations and the tokenizer of the base are absolute in its runs", "[fast]") {
  const SweepFolder folder;
  const Sweep sweep = read_sweep(write_sweep(folder, R"x("runs": [{"id": "a", "set": {
    "data.tokenizer": {"type": "sentencepiece", "file": "t.model"},
    "eval": {"evaluations": [{"name": "e", "kind": "stream_ppl", "data": {"path": "held-out.bin"}}]}}}])x"));
  const Json& config = sweep.runs[0].config;
  CHECK(config.at("data").at("tokenizer").at("file").as_string() == (folder / "t.model").string());
  CHECK(config.at("eval").at("evaluations").items()[0].at("data").at("path").as_string() ==
        (folder / "held-out.bin").string());
}

TEST_CASE("derived values see the model of their run and the values before them", "[fast]") {
  const Sweep sweep = sweep_of(R"x("runs": [{"id": "a"}, {"id": "b", "set": {"model.hidden_size": 24}}],
    "derive": {"train.tokens": "2 * params.non_embedding", "train.steps": "ceil(train.tokens / (train.batch_size * train.sequence_length))",
               "train.log_every": "max(1, train.steps // 10)"})x");
  for (const SweepRun& run : sweep.runs) {
    const Json& train = run.config.at("train");
    CHECK(train.at("tokens").as_int() == 2 * non_embedding(run));
    CHECK(train.at("steps").as_int() == (train.at("tokens").as_int() + 35) / 36);
    CHECK(train.at("log_every").as_int() == train.at("steps").as_int() / 10);
  }
}

TEST_CASE("derived values follow what is solved, and do not replace it", "[fast]") {
  const Sweep sweep = sweep_of(
      R"x("runs": [{"id": "a", "derive": {"model.layers.gdn.key_head_dim": "max(1, model.layers.mlp.intermediate_size // 100)"}}],
    "derive": {"model.layers.mlp.intermediate_size": "2 * model.hidden_size", "train.steps": "ceil(params.non_embedding / 1000)"},
    "solve": [{"path": "model.layers.mlp.intermediate_size", "quantity": "params.non_embedding", "equals": 40000}])x");
  const SweepRun& run = sweep.runs[0];
  CHECK(non_embedding(run) == Approx(40000).epsilon(0.02));
  CHECK(run.solved[0].value == width(run));
  CHECK(width(run) > 300);  // not 2 * 12
  CHECK(run.config.at("train").at("steps").as_int() == (non_embedding(run) + 999) / 1000);
  CHECK(run.config.at("model").at("layers").at("gdn").at("key_head_dim").as_int() == width(run) / 100);
}

TEST_CASE("solve finds the multiple that is nearest to a number or to another run", "[fast]") {
  const SweepFolder folder;
  const Sweep sweep = read_sweep(write_sweep(folder, R"("runs": [{"id": "gdn", "set": {"model.pattern.0.mixer": "gdn"}},
    {"id": "full", "set": {"model.layers.mlp.intermediate_size": 500}}],
    "solve": [{"path": "model.layers.mlp.intermediate_size", "quantity": "params.non_embedding", "equals": "full", "multiple_of": 4}])"));
  CHECK(width(run_of(sweep, "full")) == 500);
  CHECK(width(run_of(sweep, "gdn")) % 4 == 0);
  const double off =
      std::abs(static_cast<double>(non_embedding(run_of(sweep, "gdn")) - non_embedding(run_of(sweep, "full"))));
  CHECK(off <= 2 * 3 * 12 * 2);  // half of 4 columns more in the three matrices of two blocks
  CHECK(run_of(sweep, "gdn").solved[0].reached == static_cast<double>(non_embedding(run_of(sweep, "gdn"))));
  const Sweep number = read_sweep(write_sweep(folder, R"("runs": [{"id": "a", "solve": [
    {"path": "model.layers.mlp.intermediate_size", "quantity": "params.total", "equals": 20000}]}])"));
  CHECK(number.runs[0].solved[0].reached == Approx(20000).epsilon(0.02));
}

TEST_CASE("bad sweeps are refused with the place that is wrong", "[fast]") {
  const SweepFolder folder;
  CHECK_THAT(
      problem(folder, R"("model": {"vocab_size": 8})"),
      Contains("found the configuration of one run (it has \"model\"), expected a sweep; hebb train trains one run"));
  CHECK_THAT(
      problem(folder, R"("runs": [{"id": "a", "set": {"model.hiden_size": 8}}])"),
      Contains("sweep.json:1:") && Contains("model.hiden_size") && Contains("hidden_size") && Contains("in the run a"));
  CHECK_THAT(problem(folder, R"("runs": [{"id": "a", "set": {"train.steps.more": 8}}])"), Contains("train.steps"));
  CHECK_THAT(problem(folder, R"("grid": {"optimizer.lr": []})"), Contains("grid.optimizer.lr: found an empty list"));
  CHECK_THAT(problem(folder, R"("grid": {"model.pattern": [[1]]})"), Contains("numbers, strings or booleans"));
  CHECK_THAT(problem(folder, R"("runs": [{"id": "a"}, {"id": "a"}])"), Contains("the id \"a\" twice"));
  CHECK_THAT(problem(folder, R"("grid": {"optimizer.lr": [0.1, 0.1]})"), Contains("\"lr=0.1\" twice"));
  CHECK_THAT(problem(folder, R"("runs": [{"id": "a/b"}])"), Contains("a name that can be a folder"));
  CHECK_THAT(problem(folder, R"("runs": [])"), Contains("at least one run, an axis or a grid"));
  for (const char* id :
       {"lock", "sweep.json", "index.html", "report.md", "plots", "jobs", "results.csv", "shrunk.txt"}) {
    INFO(id);
    CHECK_THAT(problem(folder, std::string(R"("runs": [{"id": ")") + id + "\"}]"),
               Contains("the id \"" + std::string(id) + "\", expected another name: a ladder has a file of its own"));
  }
  for (const char* id : {"a\\u0000b", "a\\u001b[31m", "a\\u009b"}) {
    INFO(id);
    CHECK_THAT(problem(folder, std::string(R"("runs": [{"id": ")") + id + "\"}]"),
               Contains("a name that can be a folder"));
    CHECK_THAT(problem(folder, std::string(R"("runs": [{"id": "a", "tags": {"t": ")") + id + "\"}}]"),
               Contains("text without control characters"));
    CHECK_THAT(problem(folder, std::string(R"("axes": {")") + id + R"(": {"x": {}}})"),
               Contains("a name with control characters"));
  }
  CHECK_THAT(problem(folder, R"("runs": [{"id": ")" + std::string(200, 'a') + R"("}], "axes": {"x": {")" +
                                 std::string(200, 'b') + R"(": {}}})"),
             Contains("at most 255 bytes"));
  std::string axes;
  for (int i = 0; i < 12; ++i) {
    axes += (i > 0 ? ", \"x" : "\"x") + std::to_string(i) + "\": {";
    for (int k = 0; k < 10; ++k) { axes += (k > 0 ? ", \"" : "\"") + std::to_string(k) + "\": {}"; }
    axes += "}";
  }
  CHECK_THAT(problem(folder, "\"axes\": {" + axes + "}"),
             Contains("runs, axes and grid: found 1e+12 runs, all combinations, expected at most 10000"));
  CHECK_THAT(problem(folder, R"("runs": [{"id": "a"}], "derive": {"train.steps": 4})"),
             Contains("an expression in quotes"));
  CHECK_THAT(problem(folder, R"("runs": [{"id": "a"}], "derive": {"train.steps": "params.everything"})"),
             Contains("params.everything"));
  // Contradictions: steps and tokens that do not agree, a quantity that cannot be reached, runs that wait for each
  // other.
  CHECK_THAT(problem(folder, R"("runs": [{"id": "a"}], "derive": {"train.tokens": "1000"})"), Contains("train.steps"));
  const std::string solve = R"({"path": "model.layers.mlp.intermediate_size", "quantity": "params.total", "equals": )";
  CHECK_THAT(problem(folder, R"("runs": [{"id": "a"}], "solve": [)" + solve + "10}]"), Contains("at most 2 % from 10"));
  CHECK_THAT(problem(folder, R"("runs": [{"id": "a", "solve": [)" + solve + R"("b"}]}, {"id": "b", "solve": [)" +
                                 solve + R"("a"}]}])"),
             Contains("a run that does not depend on this one"));
  CHECK_THAT(problem(folder, R"("runs": [{"id": "a"}], "solve": [)" + solve + R"("c"}])"),
             Contains("the id of a run of this sweep"));
  CHECK_THAT(
      problem(folder, R"("runs": [{"id": "a", "solve": [)" + solve + R"(20000}]}], "solve": [)" + solve + "20000}]"),
      Contains("solve.0.path") && Contains("another entry solves") && Contains("in the run a"));
  CHECK_THAT(
      problem(
          folder,
          R"("runs": [{"id": "a"}], "solve": [{"path": "model.layers.mlp.size", "quantity": "params.total", "equals": 10}])"),
      Contains("sweep.json:1:") && Contains("model.layers.mlp.size"));
  CHECK_THAT(problem(folder, R"("runs": [{"id": "a", "tags": {"step": 1}}])"),
             Contains("runs.0.tags.step") && Contains("a name that results have already"));
  CHECK_THAT(problem(folder, R"("runs": [{"id": "a", "tags": {"of": [1]}}])"), Contains("runs.0.tags.of: found [1]"));
  CHECK_THAT(problem(folder, R"("runs": [{"id": "a"}], "evals": "eval.json")"), Contains("eval.json"));
  folder.write("eval.json", R"({"evaluations": []})");
  CHECK_THAT(problem(folder, R"("runs": [{"id": "a"}], "evals": "eval.json")"), Contains("at least one evaluation"));
  folder.write("eval.json", R"({"evaluations": [{"name": "e", "kind": "strem_ppl"}]})");
  CHECK_THAT(problem(folder, R"("runs": [{"id": "a"}], "evals": "eval.json")"),
             Contains("eval.json:1:") && Contains("stream_ppl"));
}

TEST_CASE("all wrong keys of a sweep are told at once, with the nearest known names", "[fast]") {
  const SweepFolder folder;
  const std::string text =
      problem(folder, R"("runs": [{"id": "a", "tain": false}], "max_parallel": 0, "drive": {"train.steps": "4"})");
  CHECK_THAT(text, Contains("runs.0.tain") && Contains("\"train\"") && Contains("max_parallel: found 0"));
  CHECK_THAT(text, Contains("drive") && Contains("\"derive\""));
  CHECK(std::count(text.begin(), text.end(), '\n') == 2);
}

TEST_CASE("a fit that speaks of what the sweep does not have is refused before anything runs", "[fast]") {
  const SweepFolder folder;
  const auto fit = [&](const std::string& members) {
    return problem(folder, R"("runs": [{"id": "a", "tags": {"arch": "full"}}, {"id": "b"}], "fit": {)" + members + "}");
  };
  CHECK(fit(R"("x": "seconds", "y": "val.held", "fit_ids": ["*"], "predict_ids": ["b"])") == "");
  CHECK_THAT(fit(R"("by": "arhc")"),
             Contains("sweep.json:1:") && Contains("fit.by: found \"arhc\"") && Contains("\"arch\""));
  CHECK_THAT(fit(R"("level": "size")"), Contains("fit.level"));
  CHECK_THAT(fit(R"("y": "val.hedl")"), Contains("fit.y") && Contains("did you mean \"val.held\""));
  CHECK_THAT(fit(R"("x": "flops.totl")"), Contains("fit.x") && Contains("did you mean \"flops.total\""));
  CHECK_THAT(fit(R"("y": "eval.none.ppl")"), Contains("fit.y: found \"eval.none.ppl\""));
  CHECK_THAT(fit(R"("fit_ids": [])"),
             Contains("fit.fit_ids: found an empty list, expected a list of strings with at least one element"));
  CHECK_THAT(fit(R"("fit_ids": ["c*"])"), Contains("fit.fit_ids: found \"c*\"") && Contains("\"a\", \"b\""));
  CHECK_THAT(fit(R"("predict_ids": ["a", "c"])"), Contains("fit.predict_ids: found \"c\""));
}

TEST_CASE("a group of a fit with too few values of x is named before anything runs", "[fast]") {
  const SweepFolder folder;
  const auto fit = [&](const std::string& members) {
    return problem(folder, R"("axes": {"arch": {"full": {}, "gdn": {"set": {"model.pattern.0.mixer": "gdn"}}},
                                       "size": {"s": {"tags": {"n": 1}}, "m": {"set": {"train.steps": 24}, "tags": {"n": 2}}}},
                              "grid": {"train.seed": [1, 2]}, "fit": {)" +
                               members + "}");
  };
  CHECK(fit(R"("by": "arch")") == "");
  CHECK(fit(R"("by": "arch", "x": "n")") == "");
  CHECK(fit(R"("by": "arch", "x": "loss.final")") == "");  // is known when the runs have been trained
  CHECK_THAT(fit(R"("by": "arch", "fit_ids": ["full*", "gdn-s*"])"),
             Contains("sweep.json:3:") &&
                 Contains("fit: found one value of flops.total in the group arch = \"gdn\", expected at least 2"));
  CHECK_THAT(fit(R"("by": "arch", "predict_ids": ["full-m*"])"), Contains("arch = \"full\""));
  CHECK_THAT(fit(R"("x": "n", "offset": true)"), Contains("fit: found 2 values of n, expected at least 3"));
}
