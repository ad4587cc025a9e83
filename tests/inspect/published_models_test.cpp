// Every configuration in configs/: what papers print of it, and one training step of a shrunken copy.
#include <cmath>
#include <set>

#include "eval/evaluation.h"
#include "inspect/plan.h"
#include "study/ladder/ladder.h"
#include "study/ladder/shrink.h"
#include "study/ladder/sweep.h"
#include "tests/temp_folder.h"
#include "tests/test.h"
#include "tests/train/run_fixture.h"

namespace {

/// All files below configs/ that have a key, by path relative to it.
std::vector<std::string> files_with(const char* key) {
  std::vector<std::string> found;
  const fs::path root = fs::path(HEBB_SOURCE) / "configs";
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
    if (entry.path().extension() == ".json" && load_config(entry.path().string()).find(key) != nullptr) {
      found.push_back(fs::relative(entry.path(), root).string());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<std::string> run_configurations() { return files_with("model"); }

std::string path_of(const std::string& config) { return (fs::path(HEBB_SOURCE) / "configs" / config).string(); }

Plan plan_of(const std::string& config) {
  RunConfig run = read_run_config(path_of(config), {}, resolve_evaluations);
  resolve(run);
  return plan_run(run, {.open_data = false});
}

std::string print(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

/// `value` in the unit and with the digits of `printed` ("98k", "1.48B", "112.11" with its unit given apart).
std::string like(const std::string& printed, double value, double unit) {
  const size_t point = printed.find('.'), end = printed.find_last_of("0123456789");
  const int digits = point == std::string::npos ? 0 : static_cast<int>(end - point);
  return print(("%." + std::to_string(digits) + "f").c_str(), value / unit) + printed.substr(end + 1);
}

double unit_of(const std::string& printed) {
  return printed.back() == 'k' ? 1e3 : printed.back() == 'M' ? 1e6 : printed.back() == 'B' ? 1e9 : 1;
}

double by(const Plan& plan, const std::string& paper) {
  for (const PaperFlops& p : plan.papers) {
    if (p.name == paper) { return p.training_per_token; }
  }
  FAIL("no accounting of " << paper);
  return 0;
}

/// Numbers of the GDN states of a ladder model: without the inputs of the convolutions, which the paper leaves out.
int64_t gdn_state_numbers(const Plan& plan, const ModelConfig& model) {
  for (const LayerPlan& l : plan.layers) {
    if (l.type == "gdn") {
      const Json gdn = Fields::write(model).at("layers").at(l.name);
      const int64_t heads = gdn.at("num_heads").as_int(), keys = heads * gdn.at("key_head_dim").as_int();
      const int64_t inputs =
          (gdn.at("conv_size").as_int() - 1) * (2 * keys + heads * gdn.at("value_head_dim").as_int());
      return l.count * (l.state_bytes[0] - 2 * inputs) / 4;
    }
  }
  return 0;
}

}  // namespace

TEST_CASE("published models have the published numbers of parameters, states and FLOPs", "[fast]") {
  const Json table = parse_json_file((fs::path(HEBB_TEST_DATA) / "golden" / "published-models.json").string());
  for (const Json& row : table.items()) {
    const std::string config = row.at("config").as_string();
    INFO(config);
    const Plan plan = plan_of(config);
    const ParameterCounts& n = plan.parameters;
    const auto same = [&](const char* key, int64_t found) {
      if (const Json* v = row.find(key)) { CHECK(found == v->as_int()); }
    };
    const auto printed = [&](const char* key, double found, double unit = 0) {
      if (const Json* v = row.find(key)) {
        CHECK(like(v->as_string(), found, unit > 0 ? unit : unit_of(v->as_string())) == v->as_string());
      }
    };
    same("total", n.total);
    same("body", n.non_embedding);
    same("state", n.state);
    same("without_state", n.total - n.state);
    printed("without_state_printed", static_cast<double>(n.total - n.state));
    printed("state_printed", static_cast<double>(n.state));
    printed("state_per_body_percent", 100.0 * static_cast<double>(n.state) / static_cast<double>(n.non_embedding), 1);
    printed("total_millions", static_cast<double>(n.total), 1e6);
    if (row.find("active_millions") != nullptr) {  // the paper subtracts unread rows from its rounded total
      const double rounded = std::round(static_cast<double>(n.total) / 1e4) * 1e4;
      printed("active_millions", rounded - static_cast<double>(n.total - n.active), 1e6);
    }
    if (const Json* gdn = row.find("gdn_state")) {
      CHECK(gdn_state_numbers(plan, read_run_config(path_of(config)).model) == gdn->as_int());
    }
    if (const Json* tera = row.find("teraflops")) {  // one training pass over 8 rows of 4,096 tokens
      const double residual = by(plan, "fwpkm") * 32768 / 1e12 - std::stod(tera->as_string());
      CHECK(residual >= row.at("teraflops_residual").items()[0].as_double());
      CHECK(residual <= row.at("teraflops_residual").items()[1].as_double());
    }
    if (row.find("gigaflops_per_token") != nullptr) { printed("gigaflops_per_token", by(plan, "sdm"), 1e9); }
    if (const Json* tokens = row.find("tokens")) {  // printed with three or four digits
      CHECK(static_cast<double>(plan.tokens) == Approx(tokens->as_double()).epsilon(2e-3));
      CHECK(print("%.3e", by(plan, "sdm") * tokens->as_double()) == row.at("total_flops").as_string());
    }
    if (row.find("zettaflops") != nullptr) {
      printed("zettaflops", by(plan, "ham") * static_cast<double>(plan.tokens), 1e21);
    }
  }
}

TEST_CASE("every configuration plans, names itself by its file, and is listed once", "[fast]") {
  std::set<std::string> names;
  for (const std::string& config : run_configurations()) {
    INFO(config);
    const Plan plan = plan_of(config);
    CHECK(plan.memory->total_bytes() > 0);
    CHECK(plan.parameters.active <= plan.parameters.total);
    std::string expected = config.substr(0, config.size() - 5);
    std::replace(expected.begin(), expected.end(), '/', '-');
    CHECK(plan.name == expected);
    CHECK(names.insert(plan.name).second);
  }
  CHECK(names.size() > 100);
}

TEST_CASE("published sizes of sweeps are those of their runs", "[fast]") {
  int checked = 0;
  for (const char* name : {"ham/table-1", "fwpkm/table-1", "fwpkm/table-3", "sdm/ladder", "ovq/table-1"}) {
    const Sweep sweep = read_sweep(path_of(std::string(name) + ".json"));
    REQUIRE(sweep.published);
    for (const SweepRun& run : sweep.runs) {
      const Json* row = sweep.published->rows.find(run.id);
      const Json result = planned_result(run);
      for (size_t i = 0; row != nullptr && i < row->items().size(); ++i) {
        const PublishedColumn& column = sweep.published->columns[i];
        const Json* ours = column.key.empty() ? nullptr : result.find(column.key);
        if (ours == nullptr || row->items()[i].is_null()) { continue; }
        INFO(name << " " << run.id << " " << column.name);
        CHECK(column.scale * ours->as_double() == Approx(row->items()[i].as_double()).epsilon(0.01));
        ++checked;
      }
    }
  }
  CHECK(checked > 80);
}

TEST_CASE("every sweep in configs/ composes", "[fast]") {
  const std::vector<std::string> sweeps = files_with("base");
  CHECK(sweeps.size() > 20);
  for (const std::string& sweep : sweeps) {
    INFO(sweep);
    CHECK(!read_sweep(path_of(sweep)).runs.empty());
  }
}

TEST_CASE("the mini ladders are the runs whose results are documented", "[fast]") {
  const auto cost = [](const char* file) {
    return describe_ladder(read_sweep(path_of(std::string("mini/") + file)), {});
  };
  CHECK_THAT(cost("ladder.json"), Contains("\nfwpkm-96       616.53K  591.66K  52.22K  568.14K        1.15M") &&
                                      Contains("\n32 runs, 1.311e+08 tokens, 2.2833e+14 FLOPs\n"));
  CHECK_THAT(cost("ladder-5-minutes.json"),
             Contains("\ngdn-64") && Contains("\n12 runs, 6.144e+07 tokens, 2.3154e+13 FLOPs\n"));
}

TEST_CASE("every list of evaluations in configs/ is read", "[fast]") {
  const std::vector<std::string> lists = files_with("evaluations");
  CHECK(lists.size() >= 4);
  for (const std::string& list : lists) {
    INFO(list);
    CHECK(!read_evaluations(load_config(path_of(list)), "").empty());
  }
}

FOLDER_TEST("every configuration trains when it is shrunk", "[slow]") {
  Progress quiet;
  for (const std::string& config : run_configurations()) {
    INFO(config);
    const fs::path file =
        folder.write("one.json", R"({"name": "one", "runs": [{"id": "run", "config": ")" + path_of(config) + "\"}]}");
    const double flops = config.ends_with("-128k.json") ? 1e11 : 1e9;  // a step and more
    const Sweep sweep = shrink_sweep(read_sweep(file), {{flops, false}, (folder / "corpus").string()}).sweep;
    write_corpus(*sweep.shrunk, quiet);
    auto run = Fields::read<RunConfig>(sweep.runs[0].config, "");
    run.train.device = "cpu";
    resolve(run);
    const fs::path out = folder / "run";
    const double fresh = std::log(static_cast<double>(run.model.vocab_size));
    CHECK(run_in(out, std::move(run)) == 0);
    const std::vector<double> loss = metric(out, "loss");
    REQUIRE(!loss.empty());
    CHECK(loss[0] == Approx(fresh).epsilon(0.2));  // fresh models know nothing
    fs::remove_all(out);
    fs::remove_all(folder / "corpus");
  }
}

TEST_CASE("models of level 8 fit a GPU of 80 GB with four rows of 8,192 tokens", "[fast]") {
  constexpr double kFree = 78.5 * 1024 * 1024 * 1024;  // of an H100's 79.6 GiB; the driver keeps the rest
  for (const char* name : {"sdm/L08-gdn.json", "sdm/L08-full.json", "sdm/L08-sdm.json"}) {
    RunConfig run = read_run_config(path_of(name), {"train.device=cuda", "train.precision=bf16"});
    resolve(run, 1, false);
    INFO(name);
    CHECK(*run.train.micro_batch_size == 4);
    CHECK(static_cast<double>(plan_memory(run).total_bytes()) < kFree);
  }
}
