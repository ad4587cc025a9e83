// `axes` of a sweep.
#include "tests/study/sweep_fixture.h"

namespace {

using Ids = std::vector<std::string>;

const std::string kWidth = "model.layers.mlp.intermediate_size";

/// Two architectures at two sizes, with these members beside `axes`.
std::string two_by_two(const std::string& members = "") {
  return R"("axes": {"arch": {"full": {}, "gdn": {"set": {"model.pattern.0.mixer": "gdn"}}},
    "size": {"small": {"set": {"model.hidden_size": 12}}, "large": {"set": {"model.hidden_size": 24}}}})" +
         members;
}

int64_t hidden_size(const SweepRun& run) { return run.config.at("model").at("hidden_size").as_int(); }
std::string mixer(const SweepRun& run) {
  return run.config.at("model").at("pattern").items()[0].at("mixer").as_string();
}

/// What is wrong with two axes of these choices.
std::string axes_problem(const TempFolder& folder, const std::string& a, const std::string& b,
                         const std::string& members = "") {
  return problem(folder, R"("axes": {"a": {)" + a + R"(}, "b": {)" + b + "}}" + members);
}

}  // namespace

TEST_CASE("axes are multiplied with each other: ids, tags and values", "[fast]") {
  const Sweep sweep = sweep_of(two_by_two());
  REQUIRE(ids_of(sweep) == Ids{"full-small", "full-large", "gdn-small", "gdn-large"});
  for (const SweepRun& run : sweep.runs) {
    CHECK(run.tags.members().size() == 2);
    CHECK(run.id == run.tags.at("arch").as_string() + "-" + run.tags.at("size").as_string());
    CHECK(hidden_size(run) == (run.tags.at("size").as_string() == "small" ? 12 : 24));
    CHECK(mixer(run) == run.tags.at("arch").as_string());
    CHECK(run.config.at("name").as_string() == run.id);
  }
}

TEST_CASE("axes multiply runs and are multiplied by the grid", "[fast]") {
  const Sweep sweep = sweep_of(
      R"("runs": [{"id": "a", "tags": {"level": 1, "seed": "own"}}, {"id": "b", "set": {"optimizer.lr": 0.02}}],
    "axes": {"size": {"small": {"tags": {"cost": 1}}, "large": {"set": {"model.hidden_size": 24}}}}, "grid": {"train.seed": [1, 2]})");
  CHECK(ids_of(sweep) == Ids{"a-small_seed=1", "a-small_seed=2", "a-large_seed=1", "a-large_seed=2", "b-small_seed=1",
                             "b-small_seed=2", "b-large_seed=1", "b-large_seed=2"});
  const SweepRun& run = run_of(sweep, "b-large_seed=2");
  CHECK(hidden_size(run) == 24);
  CHECK(run.config.at("optimizer").at("lr").as_double() == 0.02);
  CHECK(run.config.at("train").at("seed").as_int() == 2);
  CHECK(run.tags == parse_json(R"({"size": "large", "seed": 2})", ""));
  CHECK(run_of(sweep, "a-small_seed=1").tags ==
        parse_json(R"({"level": 1, "seed": "own", "size": "small", "cost": 1})", ""));
}

TEST_CASE("a choice derives values for its runs, before the sweep does", "[fast]") {
  const Sweep sweep = sweep_of(R"x("axes": {
    "arch": {"full": {}, "gdn": {"set": {"model.pattern.0.mixer": "gdn"}, "derive": {"model.layers.gdn.key_head_dim": "model.hidden_size // 4"}}},
    "size": {"small": {}, "large": {"set": {"model.hidden_size": 24}}}},
    "derive": {"train.steps": "model.layers.gdn.key_head_dim + 10"})x");
  const auto steps = [&](const std::string& id) { return run_of(sweep, id).config.at("train").at("steps").as_int(); };
  CHECK(steps("full-small") == 14);
  CHECK(steps("full-large") == 14);
  CHECK(steps("gdn-small") == 13);
  CHECK(steps("gdn-large") == 16);
}

TEST_CASE("solve names a choice and means the run that has the other choices in common", "[fast]") {
  const SweepFolder folder;
  const std::string equal = R"([{"path": ")" + kWidth + R"(", "quantity": "params.non_embedding", "equals": )";
  const std::string grid = R"(, "grid": {"train.seed": [1, 2]})";
  const auto check = [](const Sweep& sweep, const char* reference_size) {
    for (const char* size : {"small", "large"}) {
      for (const char* seed : {"_seed=1", "_seed=2"}) {
        const SweepRun& full =
            run_of(sweep, std::string("full-") + (reference_size != nullptr ? reference_size : size) + seed);
        const SweepRun& gdn = run_of(sweep, std::string("gdn-") + size + seed);
        CHECK(full.solved.empty());
        REQUIRE(gdn.solved.size() == 1);
        CHECK(gdn.solved[0].target == static_cast<double>(non_embedding(full)));
        CHECK(gdn.solved[0].reached == static_cast<double>(non_embedding(gdn)));
        CHECK(static_cast<double>(non_embedding(gdn)) ==
              Approx(static_cast<double>(non_embedding(full))).epsilon(0.02));
      }
    }
  };
  // For all runs, and for those of one choice: at each size.
  check(read_sweep(write_sweep(folder, two_by_two(grid + R"(, "solve": )" + equal + R"("full"}])"))), nullptr);
  const std::string of_gdn =
      R"("axes": {"arch": {"full": {}, "gdn": {"set": {"model.pattern.0.mixer": "gdn"}, "solve": )" + equal;
  const std::string sizes = R"("size": {"small": {"set": {"model.hidden_size": 12, ")" + kWidth +
                            R"(": 400}}, "large": {"set": {"model.hidden_size": 24, ")" + kWidth + R"(": 300}}}})";
  check(read_sweep(write_sweep(folder, of_gdn + R"("full"}]}}, )" + sizes + grid)), nullptr);
  // A part of the id with both axes: the same run for all sizes, with the same seed.
  check(read_sweep(write_sweep(folder, of_gdn + R"("full-large"}]}}, )" + sizes + grid)), "large");
}

TEST_CASE("axes that get in each other's way are refused with both places", "[fast]") {
  const SweepFolder folder;
  const std::string d12 = R"("x": {"set": {"model.hidden_size": 12}})";
  CHECK_THAT(
      axes_problem(folder, d12, R"("y": {"set": {"model.hidden_size": 24}})"),
      Contains("sweep.json:1:") &&
          Contains("axes.b.y.set.model.hidden_size: found a path that axes.a.x.set.model.hidden_size sets as well"));
  CHECK_THAT(axes_problem(folder, d12, R"("y": {"derive": {"/model/hidden_size": "24"}})"),
             Contains("axes.b.y.derive./model/hidden_size"));
  CHECK_THAT(axes_problem(folder, d12, R"("y": {"set": {"model": {}}})"), Contains("axes.b.y.set.model: found a path"));
  CHECK_THAT(axes_problem(folder, d12, R"("y": {})", R"(, "grid": {"model.hidden_size": [12]})"),
             Contains("grid.model.hidden_size: found a path"));
  CHECK_THAT(axes_problem(folder, d12, R"("y": {})", R"(, "runs": [{"id": "r", "set": {"model.hidden_size": 12}}])"),
             Contains("axes.a.x.set.model.hidden_size") && Contains("runs.0.set.model.hidden_size sets as well"));
  CHECK(axes_problem(folder, d12, R"("y": {"set": {"model.hidden_sizes": 1}})") !=
        "");  // another path: the schema's business
  CHECK_THAT(axes_problem(folder, R"("x": {}, "x-y": {})", R"("y-z": {}, "z": {})"),
             Contains("the id \"x-y-z\" twice"));
  CHECK_THAT(axes_problem(folder, R"("x": {})", R"("y": {})", R"(, "runs": [{"id": "r", "tags": {"b": 1}}])"),
             Contains("runs.0.tags.b: found 1") && Contains("the axis \"b\" is a tag"));
  CHECK_THAT(axes_problem(folder, R"("x": {"tags": {"b": 1}})", R"("y": {})"), Contains("axes.a.x.tags.b"));
  CHECK_THAT(axes_problem(folder, R"("x": {"tags": {"a": 1}})", R"("y": {})"), Contains("axes.a.x.tags.a"));
  CHECK_THAT(axes_problem(folder, R"("x": {})", R"("y": {})", R"(, "grid": {"model.b": [1]})"),
             Contains("grid: found a key whose last part is \"b\""));
  const std::string ask =
      R"(, "solve": [{"path": "model.layers.mlp.intermediate_size", "quantity": "params.total", "equals": )";
  CHECK_THAT(axes_problem(folder, R"("x": {}, "y": {})", R"("x": {}, "z": {})", ask + R"("x"}])"),
             Contains("solve.0.equals") && Contains("which for ") && Contains("the id of one run"));
}

TEST_CASE("axes of a wrong form are refused with their place", "[fast]") {
  const SweepFolder folder;
  CHECK_THAT(problem(folder, R"("axes": [])"), Contains("axes: found an array, expected an object"));
  CHECK_THAT(problem(folder, R"("axes": {})"), Contains("at least one run, an axis or a grid"));
  CHECK_THAT(problem(folder, R"("axes": {"arch": {}})"), Contains("axes.arch: found an axis without choices"));
  CHECK_THAT(problem(folder, R"("axes": {"arch": ["gdn"]})"),
             Contains("axes.arch: found an array, expected an object of choices"));
  CHECK_THAT(problem(folder, R"("axes": {"arch": {"gdn": "gdn"}})"),
             Contains("axes.arch.gdn: found \"gdn\", expected an object"));
  CHECK_THAT(problem(folder, R"("axes": {"arch": {"gdn": {"set": []}}})"),
             Contains("axes.arch.gdn.set: found an array"));
  CHECK_THAT(problem(folder, R"("axes": {"arch": {"gdn": {"model.hidden_size": 12}}})"),
             Contains("axes.arch.gdn.model.hidden_size: found an unknown key") && Contains("\"set\""));
  CHECK_THAT(problem(folder, R"("axes": {"arch": {"gdn": {"derive": {"train.steps": 3}}}})"),
             Contains("axes.arch.gdn.derive.train.steps: found 3, expected an expression"));
  CHECK_THAT(problem(folder, R"("axes": {"arch": {"a/b": {}}})"), Contains("a name that can be a folder"));
  CHECK_THAT(problem(folder, R"("axes": {"tokens": {"few": {}}})"),
             Contains("axes.tokens: found a name that results have already"));
  CHECK_THAT(problem(folder, R"("axes": {"": {"few": {}}})"), Contains("an empty name"));
}

TEST_CASE("the table of a report has the axis beside `by` in its rows", "[fast]") {
  const SweepFolder folder;
  const auto level = [&](const std::string& members) {
    return read_sweep(write_sweep(folder, two_by_two(members))).fit->level;
  };
  CHECK(level(R"(, "fit": {"by": "arch"})") == "size");
  CHECK(level(R"(, "fit": {"by": "size"})") == "arch");
  CHECK(level(R"(, "fit": {})") == "level");  // two candidates
  CHECK(level(R"(, "fit": {"by": "arch", "level": "arch"})") == "arch");
}
