#include "study/ladder/shrink.h"

#include <cmath>
#include <map>

#include "inspect/bench.h"
#include "inspect/plan.h"
#include "layers/model.h"
#include "study/ladder/ladder.h"
#include "study/ladder/shrink_sizes.h"
#include "tests/study/sweep_fixture.h"
#include "tests/train/process.h"

namespace {

/// Every sweep below configs/, by path relative to it.
std::vector<std::string> shipped_sweeps() {
  std::vector<std::string> found;
  const fs::path root = fs::path(HEBB_SOURCE) / "configs";
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
    if (entry.path().extension() != ".json") { continue; }
    const Json json = load_config(entry.path().string());
    if (json.find("runs") != nullptr || json.find("axes") != nullptr || json.find("grid") != nullptr) {
      found.push_back(fs::relative(entry.path(), root).string());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// On the CPU, also where a build has an emulated GPU.
Sweep shipped(const std::string& path) {
  Sweep sweep = read_sweep(fs::path(HEBB_SOURCE) / "configs" / path);
  for (SweepRun& run : sweep.runs) { run.config.find("train")->set("device", Json("cpu")); }
  return sweep;
}

Shrinking shrunken(const Sweep& sweep, double flops, const std::string& corpus = "/nowhere/corpus") {
  return shrink_sweep(sweep, {.budget = {flops, true}, .corpus = corpus});
}

double cost(const Sweep& sweep) {
  double sum = 0;
  for (const SweepRun& run : sweep.runs) { sum += planned_result(run).at("flops.total").as_double(); }
  return sum;
}

int64_t at(const SweepRun& run, const std::string& path) {
  const Json* json = run.config.find_path(path);
  REQUIRE(json != nullptr);
  return json->as_int();
}

/// a : b in both runs, within the rounding of `a` and `b` to multiples of `multiple`.
void check_ratio(const SweepRun& before, const SweepRun& after, const std::string& a, const std::string& b,
                 double multiple) {
  INFO(before.id << " " << a << " : " << b);
  const auto va = static_cast<double>(at(after, a)), vb = static_cast<double>(at(after, b));
  const double ratio = static_cast<double>(at(before, a)) / static_cast<double>(at(before, b));
  CHECK(std::abs(va / vb / ratio - 1) <= multiple / 2 / va + multiple / 2 / vb);
}

void train(const std::string& path, double flops) {
  INFO(path);
  const TempFolder folder;
  const Sweep sweep = shipped(path);
  LadderOptions options;
  options.folder = folder / "ladder";
  options.program = HEBB_BINARY;
  options.parallel = 2;
  const std::string corpus = has_text(sweep) ? "" : (options.folder / "corpus").string();
  std::string lines;
  const Console console{[&](std::string_view line) { lines += std::string(line) + "\n"; }, nullptr};
  const Sweep smaller = shrunken(sweep, flops, corpus).sweep;
  const int code = run_ladder(smaller, options, console);
  INFO(lines);
  CHECK(code == 0);
  std::istringstream results(read_file(options.folder / "results.jsonl"));
  size_t count = 0;
  for (std::string line; std::getline(results, line); ++count) {
    const Json result = parse_json(line, "results.jsonl");
    INFO(line);
    CHECK(result.at("loss.final").as_double() > 0);
    CHECK(result.at("loss.final").as_double() < 12);
    CHECK(result.at("seconds").as_double() > 0);
  }
  CHECK(count == sweep.runs.size());
  CHECK(read_ladder(options.folder).shrink->budget == ShrinkBudget{flops, true});
  CHECK(read_file(options.folder / "shrunk.txt") == smaller.shrunk->text);
}

}  // namespace

TEST_CASE("every sweep in configs/ shrinks to about the FLOPs that are asked for", "[fast]") {
  const std::vector<std::string> sweeps = shipped_sweeps();
  CHECK(sweeps.size() >= 15);
  for (const std::string& path : sweeps) {
    INFO(path);
    const Sweep sweep = shipped(path);
    const double full = cost(sweep);
    for (const double flops : {1e12, 1e15, 1e17}) {
      INFO(flops);
      const Shrinking small = shrunken(sweep, flops);
      CHECK(cost(small.sweep) <= 1.0001 * std::max(flops, 0.0));
      if (flops < full) { CHECK(cost(small.sweep) >= 0.45 * flops); }
      CHECK(small.sweep.runs.size() == sweep.runs.size());
      CHECK(small.sweep.planned.size() == sweep.planned.size());
      CHECK_THAT(describe_ladder(small.sweep, {}), Contains(std::to_string(sweep.runs.size()) + " runs, "));
    }
  }
}

TEST_CASE("FLOPs are those of a run in the mean, or of all runs", "[fast]") {
  const Sweep sweep = shipped("sdm/ladder.json");
  const Shrinking total = shrunken(sweep, 1e14);
  const Shrinking each = shrink_sweep(
      sweep, {.budget = {1e14 / static_cast<double>(sweep.runs.size()), false}, .corpus = "/nowhere/corpus"});
  for (size_t i = 0; i < sweep.runs.size(); ++i) { CHECK(each.sweep.runs[i].config == total.sweep.runs[i].config); }
  CHECK_THAT(total.text(), Catch::Matchers::StartsWith("1e14 training FLOPs in all: "));
  CHECK_THAT(each.text(), Catch::Matchers::StartsWith("3.57143e12 training FLOPs per run: "));
  CHECK(total.sweep.name == "sdm-ladder-shrunk-total-1e14");
  CHECK(each.sweep.name == "sdm-ladder-shrunk-3.57143e12");
}

TEST_CASE("all runs of a shrunken sweep validate on the same rows, at least 16", "[fast]") {
  for (const std::string path : {"sdm/ladder.json", "fwpkm/table-1.json", "ovq/icr.json"}) {
    for (const double flops : {1e11, 1e15}) {
      INFO(path << " " << flops);
      const Sweep sweep = shipped(path);
      const Shrinking small = shrunken(sweep, flops);
      const int64_t rows = small.factors.validation_rows;
      CHECK(rows >= 16);
      int64_t most = 0;  // a fortieth of the rows that a run trains on, for each set
      for (size_t i = 0; i < sweep.runs.size(); ++i) {
        const SweepRun &before = sweep.runs[i], &after = small.sweep.runs[i];
        const int64_t own = before.config.at("data").at("validation").items()[0].integer_at("max_rows", rows);
        CHECK(at(after, "data.validation.0.max_rows") == std::min(own, rows));
        const auto sets = static_cast<int64_t>(after.config.at("data").at("validation").items().size());
        most = std::max(most, at(after, "train.steps") * at(after, "train.batch_size") / (40 * sets));
      }
      CHECK(rows == std::max<int64_t>(16, most));
      CHECK_THAT(small.text(),
                 Contains("each validation pass reads at most " + std::to_string(rows) + " rows a set, the same"));
    }
  }
}

TEST_CASE("runs that join a shrunken sweep shrink as those before, which stay what they are", "[fast]") {
  Sweep first = shipped("fwpkm/table-1.json");
  const Sweep all = first;
  first.runs.resize(3);
  const Shrinking before = shrunken(first, 1e14), alone = shrunken(all, 1e14);
  CHECK(before.factors.runs == ids_of(first));
  const auto kept = Fields::read<ShrinkFactors>(Fields::write(before.factors), "shrink");
  const Shrinking after = shrink_sweep(all, {.corpus = "/nowhere/corpus", .kept = kept});
  CHECK(after.sweep.name == before.sweep.name);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(after.sweep.runs[i].config == before.sweep.runs[i].config);
    CHECK_FALSE(alone.sweep.runs[i].config == before.sweep.runs[i].config);  // new factors would move them
  }
  for (const SweepRun& run : after.sweep.runs) {
    CHECK(at(run, "train.steps") == at(before.sweep.runs[0], "train.steps"));  // equal tokens stay equal
    CHECK(at(run, "data.validation.0.max_rows") == at(before.sweep.runs[0], "data.validation.0.max_rows"));
  }
  CHECK_THAT(after.text(), Contains("joined the runs of the first start, with their factors: ") &&
                               Contains(all.runs[3].id + " ") && !Contains("factors: " + all.runs[0].id + " "));
  CHECK_THAT(before.text(), !Contains("joined"));
}

TEST_CASE("a run that joins may have a pattern of its own", "[fast]") {
  const SweepFolder folder;
  const auto read = [&](const std::string& runs) {
    return read_sweep(write_sweep(folder, R"("runs": [{"id": "a", "set": {"model.num_layers": 6}})" + runs + "]"));
  };
  const Shrinking before = shrunken(read(""), 5e6);
  const Sweep more = read(R"(, {"id": "b", "set": {"model.num_layers": 6,
    "model.pattern": [{"mixer": "full", "ffn": "mlp"}, {"mixer": "gdn", "ffn": "mlp"}, {"mixer": "gdn", "ffn": "mlp"}]}})");
  const Sweep after = shrink_sweep(more, {.corpus = "/nowhere/corpus", .kept = before.factors}).sweep;
  CHECK(after.runs[0].config == before.sweep.runs[0].config);
  CHECK(at(after.runs[1], "model.num_layers") % 3 == 0);
}

TEST_CASE("a sweep shrinks to the same text each time, and shrunken once more it stays as it is", "[fast]") {
  for (const std::string path : {"fwpkm/table-1.json", "ham/table-1.json", "ovq/icr.json", "sdm/ladder.json"}) {
    INFO(path);
    const Shrinking once = shrunken(shipped(path), 1e14);
    CHECK(once.text() == shrunken(shipped(path), 1e14).text());
    const Shrinking twice = shrunken(once.sweep, 1e14);
    CHECK(twice.changes.empty());
    CHECK(twice.factors.width == 1);
    for (size_t i = 0; i < once.sweep.runs.size(); ++i) {
      CHECK(twice.sweep.runs[i].config == once.sweep.runs[i].config);
    }
  }
}

TEST_CASE("more FLOPs make no size smaller", "[fast]") {
  for (const std::string path : {"fwpkm/table-1.json", "sdm/ladder.json", "kvm/120m.json", "ovq/positional.json"}) {
    const Sweep sweep = shipped(path);
    std::map<std::string, int64_t> last;
    for (double flops = 1e12; flops < 1e19; flops *= 10) {
      const auto grows = [&](const std::string& place, const Json& object) {
        for (const auto& [key, value] : object.members()) {
          if (!value.is_integer() || key == "quantize_after" || key == "freeze_steps") { continue; }  // steps
          INFO(path << " " << place << "." << key << " at " << flops);
          CHECK(value.as_int() >= last[place + "." + key]);
          last[place + "." + key] = value.as_int();
        }
      };
      for (const SweepRun& run : shrunken(sweep, flops).sweep.runs) {
        grows(run.id + " model", run.config.at("model"));
        for (const auto& [name, layer] : run.config.at("model").at("layers").members()) {
          if (layer.at("type").as_string() != "lact") { grows(run.id + " " + name, layer); }  // heads divide its width
        }
        CHECK(at(run, "train.sequence_length") >= last["length"]);
        last["length"] = at(run, "train.sequence_length");
      }
    }
  }
}

TEST_CASE("shrinking keeps the ratios of widths, lengths and memories", "[fast]") {
  for (const double flops : {1e15, 1e16, 1e17}) {
    const Sweep before = shipped("fwpkm/table-1.json"), after = shrunken(before, flops).sweep;
    for (size_t i = 0; i < before.runs.size(); ++i) {
      const SweepRun &b = before.runs[i], &a = after.runs[i];
      check_ratio(b, a, "model.layers.mlp.intermediate_size", "model.hidden_size", 8);
      check_ratio(b, a, "model.layers.fwpkm.key_dim", "model.hidden_size", 8);
      check_ratio(b, a, "model.layers.swa.window", "train.sequence_length", 1);
      check_ratio(b, a, "model.layers.fwpkm.chunk_size", "train.sequence_length", 1);
      check_ratio(b, a, "model.layers.pkm.top_k", "model.layers.pkm.num_subkeys", 1);
      check_ratio(b, a, "model.layers.fa.num_heads", "model.layers.fa.num_kv_heads", 0.001);
      CHECK(at(a, "model.layers.gdn.key_head_dim") >= 16);
      CHECK(at(a, "model.num_layers") % 4 == 0);
      CHECK(at(a, "train.steps") == at(after.runs[0], "train.steps"));  // equal tokens stay equal
      CHECK(at(a, "train.batch_size") % at(a, "train.micro_batch_size") == 0);
    }
    const Sweep kvm = shipped("kvm/120m.json"), small = shrunken(kvm, flops).sweep;
    const SweepRun &b = run_of(kvm, "120m-kvm-256"), &a = run_of(small, "120m-kvm-256");
    check_ratio(b, a, "model.layers.kvm.state.rows", "train.sequence_length", 1);
    check_ratio(b, a, "model.layers.kvm.chunk_size", "train.sequence_length", 1);
  }
}

TEST_CASE("levels of a ladder stay different, and tokens for each parameter alike", "[fast]") {
  const Sweep before = shipped("sdm/ladder.json");
  const Shrinking after = shrunken(before, 1e17);
  for (size_t i = 0; i < before.runs.size(); ++i) {
    const Json b = planned_result(before.runs[i]), a = planned_result(after.sweep.runs[i]);
    const auto per_parameter = [](const Json& r) {
      return r.at("tokens").as_double() / r.at("params.non_embedding").as_double();
    };
    INFO(before.runs[i].id);
    CHECK(per_parameter(a) / per_parameter(b) == Approx(after.factors.tokens).epsilon(0.1));
  }
  CHECK(at(run_of(after.sweep, "L01-sdm"), "model.hidden_size") <
        at(run_of(after.sweep, "L08-sdm"), "model.hidden_size"));
  const Sweep least = shrunken(before, 1e12).sweep;
  CHECK(at(run_of(least, "L01-sdm"), "model.hidden_size") == 16);
  CHECK(at(run_of(least, "L08-sdm"), "model.hidden_size") == 40);
}

TEST_CASE("every layer type says how its sizes shrink", "[fast]") {
  for (const BenchModel& bench : bench_layers()) {
    INFO(bench.name);
    Json model = parse_json(bench.json, bench.name);
    const Json before = model.at("layers");
    const auto build = [](const Json& json) {
      const auto config = Fields::read<ModelConfig>(json, "model");
      return count_parameters(Model(config)).total;
    };
    const int64_t parameters = build(model);
    shrink_model(model, {.width = 0.25, .lengths = 0.25});
    for (const auto& [name, layer] : model.at("layers").members()) {
      INFO(layer.dump());
      CHECK(!(layer == before.at(name)));
    }
    CHECK(build(model) < parameters / 3);
  }
}

TEST_CASE("blocks that differ stay at their place of the period", "[fast]") {
  Json model = parse_json(R"({"hidden_size": 768, "num_layers": 14, "layers": {},
    "at": {"2": {"memory": "m"}, "6": {"ffn": "p"}, "10": {"memory": "m"}, "13": {"memory": "m"}}})",
                          "model");
  shrink_model(model, {.width = 1.0 / 16, .lengths = 1.0 / 16, .period = 4, .tail = 4});
  CHECK(model.at("num_layers").as_int() == 6);  // a period of three, and the two blocks behind the last
  CHECK(model.at("at") == parse_json(R"({"2": {"memory": "m", "ffn": "p"}, "5": {"memory": "m"}})", "at"));
  Json two = parse_json(R"({"hidden_size": 768, "num_layers": 8, "layers": {},
    "at": {"1": {"memory": "m"}, "5": {"memory": "n"}}})",
                        "model");
  CHECK_THROWS_WITH(shrink_model(two, {.width = 1.0 / 16, .lengths = 1.0 / 16, .period = 4, .tail = 4}),
                    Contains("model.at.5.memory") && Contains("block 1 of the shrunken model"));
}

TEST_CASE("what cannot be shrunk is an error that names run and key", "[fast]") {
  CHECK_THROWS_WITH(shrunken(shipped("ham/table-1.json"), 1e6),
                    Contains("found --shrink-total 1e6, expected at least --shrink-total "));
  CHECK_THROWS_WITH(shrink_sweep(shipped("ham/table-1.json"), {.budget = {1e5, false}, .corpus = "/nowhere"}),
                    Contains("found --shrink 100000, expected at least --shrink "));
  Sweep sweep = shipped("fwpkm/table-1.json");
  sweep.runs[2].config.find("model")->find("at")->find("10")->set("memory", Json("fwmlp"));
  CHECK_THROWS_WITH(shrunken(sweep, 1e14),
                    Contains("model.at.10.memory: found \"fwmlp\"") && Contains("in the shrunken run gdn-fwpkm"));
}

TEST_CASE("every shrunken sweep in configs/ trains") {
  for (const std::string& path : shipped_sweeps()) { train(path, 6e10); }
}

TEST_CASE("a shrunken ladder goes on in its folder, and only as it was shrunk") {
  const SweepFolder folder(R"("runs": [{"id": "a", "set": {"data.sources.0.path": "later.bin"}}, {"id": "b"}])");
  const auto ladder = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"ladder", "sweep.json"});
    return run_hebb(arguments, folder / "output", folder.path());
  };
  const Result planned = ladder({"--shrink", "5e6", "--dry-run"});
  INFO(planned.err);
  CHECK_THAT(planned.out,
             Contains("5e6 training FLOPs per run: widths x ") && Contains("\ntrain.steps") && Contains("runs\n") &&
                 Contains("the synthetic corpus, read as bytes, replaces the text") && Contains("\n2 runs, "));
  const Result total = ladder({"--shrink-total", "1e7", "--dry-run"});
  const auto costs = [](const std::string& text) { return text.substr(text.find("\nconfiguration ")); };
  CHECK(costs(total.out) == costs(planned.out));
  CHECK_THAT(ladder({"--shrink-total", "1e7", "--shrink", "5e6", "--dry-run"}).err,
             Contains("--shrink excludes --shrink-total"));
  const Result first = ladder({"--shrink", "5e6"});
  INFO(first.out << first.err);
  REQUIRE(first.code == 0);
  const fs::path made = folder / "runs" / "small-shrunk-5e6";
  CHECK(read_status(made / "b").state == "done");
  CHECK(fs::exists(made / "corpus" / "dataset.json"));
  CHECK_FALSE(fs::exists(made / "corpus.jsonl"));
  CHECK_THAT(ladder({"--shrink", "5e6"}).out, Contains("2 done, 0 to do"));
  CHECK_THAT(ladder({"--dir", made.string()}).out, Contains("2 done, 0 to do"));
  CHECK_THAT(ladder({"--dir", made.string(), "--shrink", "2e7"}).err,
             Contains("found --shrink 2e7, expected --shrink 5e6, as the runs in "));
  CHECK_THAT(ladder({"--dir", made.string(), "--shrink-total", "5e6"}).err,
             Contains("found --shrink-total 5e6, expected --shrink 5e6, as the runs in "));
  CHECK_THAT(ladder({"--dir", made.string(), "--status"}).out, Contains("2 of 2 runs done"));
}

namespace {

/// Every file below the folders of these runs and of the corpus, by path.
std::map<std::string, std::string> files_of(const fs::path& ladder, const std::vector<std::string>& folders) {
  std::map<std::string, std::string> files;
  for (const std::string& folder : folders) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(ladder / folder)) {
      if (entry.is_regular_file()) { files[entry.path().string()] = read_file(entry.path()); }
    }
  }
  return files;
}

}  // namespace

TEST_CASE("a ladder goes on with more seeds and rows, and its finished runs stay as they are") {
  const bool is_shrunk = GENERATE(true, false);
  const SweepFolder folder;
  const std::string a = R"({"id": "a"})", b = R"({"id": "b", "set": {"model.pattern.0.mixer": "gdn"}})",
                    c = R"({"id": "c", "set": {"model.hidden_size": 24, "train.steps": 60}})";
  if (is_shrunk) {  // its text is not there, and the corpus is made
    std::string base = read_file(folder / "base.json");
    for (size_t at; (at = base.find("tokens.bin")) != std::string::npos;) { base.replace(at, 10, "absent.bin"); }
    folder.write("base.json", base);
  }
  const auto start = [&](const std::string& runs, const std::string& seeds) {
    write_sweep(folder, "\"runs\": [" + runs + R"(], "grid": {"train.seed": [)" + seeds + "]}");
    std::vector<std::string> words = {"ladder", "sweep.json"};
    if (is_shrunk) { words.insert(words.end(), {"--shrink", "5e6"}); }
    return run_hebb(words, folder / "output", folder.path());
  };
  const fs::path made = folder / "runs" / (is_shrunk ? "small-shrunk-5e6" : "small");
  const auto rows = [&] {
    std::istringstream lines(read_file(made / "results.jsonl"));
    std::vector<Json> found;
    for (std::string line; std::getline(lines, line);) { found.push_back(parse_json(line, "results.jsonl")); }
    return found;
  };
  std::vector<std::string> kept = {"a_seed=1", "a_seed=2", "b_seed=1", "b_seed=2"};
  if (is_shrunk) { kept.emplace_back("corpus"); }
  const Result first = start(a + ", " + b, "1, 2");
  INFO(first.out << first.err);
  REQUIRE(first.code == 0);
  const auto before = files_of(made, kept);
  CHECK_THAT(start(a + ", " + b, "1, 2, 3").out, Contains("4 done, 2 to do"));
  CHECK(files_of(made, kept) == before);
  const Result last = start(a + ", " + b + ", " + c, "1, 2, 3");
  INFO(last.out << last.err);
  CHECK(last.code == 0);
  CHECK_THAT(last.out, Contains("6 done, 3 to do") && !Contains("start a") && !Contains("start b"));
  CHECK(files_of(made, kept) == before);
  REQUIRE(rows().size() == 9);
  for (const Json& row : rows()) { CHECK(row.find("val.held") != nullptr); }  // on the same rows: one column
  const std::string report = read_file(made / "report.md");
  for (const char* run : {"a", "b", "c"}) { CHECK_THAT(report, Contains(std::string("| ") + run + " ")); }
  CHECK(rows()[0].at("tokens").as_int() == rows()[2].at("tokens").as_int());
  CHECK(rows()[8].at("tokens").as_int() > rows()[0].at("tokens").as_int());

  std::string base = read_file(folder / "base.json");
  base.replace(base.find("\"lr\": 0.01"), 10, "\"lr\": 0.02");
  folder.write("base.json", base);
  const Result refused = start(a + ", " + b + ", " + c, "1, 2, 3, 4");
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("a_seed=1: found a run of another configuration: optimizer.lr: "));
  CHECK(files_of(made, kept) == before);
  CHECK_FALSE(fs::exists(made / "a_seed=4"));
}

TEST_CASE("a shrunken ladder of which no run has begun takes what the sweep has become") {
  const SweepFolder folder(R"("runs": [{"id": "a", "set": {"data.sources.0.path": "later.bin"}}])");
  const Sweep sweep = read_sweep(folder / "sweep.json");
  const fs::path made = folder / "made";
  const auto options = [&] { return shrink_options(sweep, made, {.flops = 5e6}); };
  const Shrinking first = shrink_sweep(sweep, *options());
  folder.write("made/sweep.json", Json::object({{"name", first.sweep.name},
                                                {"runs", Json::array({Json::object({{"id", "a"}})})},
                                                {"shrink", Fields::write(first.factors)}})
                                      .dump());
  CHECK_FALSE(options()->kept.has_value());
  RunStatus status;
  status.config_hash = "0123456789abcdef";
  folder.write("made/a/mark", "");
  write_status(made / "a", status);
  REQUIRE(options()->kept.has_value());
  CHECK(options()->kept->parameters[0].factor == first.factors.parameters[0].factor);
}

FOLDER_TEST("the documented plans of ladders are made") {
  std::istringstream lines(read_file(fs::path(HEBB_SOURCE) / "docs" / "ladders.md"));
  int count = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("hebb ladder ") || line.find(" --dry-run") == std::string::npos) { continue; }
    std::istringstream words(line.substr(5, line.find("  #") - 5));
    std::vector<std::string> arguments;
    for (std::string word; words >> word;) { arguments.push_back(word); }
    const Result result = run_hebb(arguments, folder / "output", HEBB_SOURCE);
    INFO(line << "\n" << result.err);
    CHECK(result.code == 0);
    ++count;
  }
  CHECK(count >= 2);
}
