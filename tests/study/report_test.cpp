#include "study/report/report.h"

#include <cmath>
#include <regex>
#include <set>

#include "study/ladder/ladder.h"
#include "study/report/fit.h"
#include "study/report/group_by_seed.h"
#include "study/report/meanings.h"
#include "study/report/parts.h"
#include "study/report/run_identity.h"
#include "study/report/run_results.h"
#include "tests/study/ladder_fixture.h"
#include "tests/thrown.h"

using Catch::StartsWith;

namespace {

/// Results of two architectures over seven sizes that lie on power laws, and one held-out size.
std::vector<Json> made_up_results() {
  std::vector<Json> results;
  for (const auto& [arch, a] : {std::pair{"full", 30.0}, std::pair{"sdm", 29.0}}) {
    for (int level = 1; level <= 8; ++level) {
      const double flops = 1e18 * std::pow(2.0, level);
      results.push_back(Json::object({{"id", std::string(arch) + "-" + std::to_string(level)},
                                      {"arch", arch},
                                      {"level", level},
                                      {"flops.total", flops},
                                      {"loss.final", a * std::pow(flops, -0.05)}}));
    }
  }
  return results;
}

FitConfig by_arch() {
  FitConfig config;
  config.by = "arch";
  config.fit_ids = {"*-[1-7]"};
  config.predict_ids = {"*-8"};
  return config;
}

std::string fit_text(const std::vector<FitGroup>& groups, const FitConfig& config) {
  Page page;
  write_fits(page, groups, config);
  return page.markdown();
}

/// Runs that have these results and no folder.
std::vector<ReportRun> runs_of(const std::vector<Json>& results) {
  std::vector<ReportRun> runs;
  for (const Json& r : results) { runs.push_back({r.at("id").as_string(), "/nowhere", {}, r}); }
  return runs;
}

/// FOLDER/report, and its text.
std::string report_of(const TempFolder& folder, const std::vector<ReportRun>& runs,
                      const std::optional<FitConfig>& fit = std::nullopt) {
  write_report("Report", runs, fit, folder / "report");
  return read_file(folder / "report/report.md");
}

/// Trains base.json in FOLDER/one.
void train_one(const SweepFolder& folder, int64_t kept_checkpoints = 1) {
  RunConfig config = read_run_config((folder / "base.json").string());
  resolve(config);
  config.train.checkpoint.keep = kept_checkpoints;
  REQUIRE(run_in(folder / "one", std::move(config)) == 0);
}

std::string csv_of(const std::vector<Json>& results) { return results_table(results).csv(); }
std::string comparison_of(const std::vector<Json>& results) { return comparison_table(results).markdown(); }

}  // namespace

TEST_CASE("fits of a report recover known laws, predict held-out runs and compare groups", "[fast]") {
  const FitConfig config = by_arch();
  const std::vector<FitGroup> groups = fit_groups(made_up_results(), config);
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].fit->a == Approx(30).epsilon(1e-9));
  CHECK(groups[1].fit->b == Approx(0.05).epsilon(1e-9));
  REQUIRE(groups[0].held_out.size() == 1);
  CHECK(groups[0].held_out[0].id == "full-8");
  CHECK(groups[0].held_out[0].measured == Approx(groups[0].held_out[0].predicted.y).epsilon(1e-9));
  // The second group needs (30/29)^(-1/0.05) of the first one's FLOPs: 0.508.
  CHECK_THAT(fit_text(groups, config), Contains("| sdm | ") && Contains("| 0.508 |") && Contains("| full-8 |"));
  CHECK_THAT(fit_chart(groups, config),
             Contains("training FLOPs, log scale") && Contains("training loss, last 5 % of steps") && Contains("10²⁰"));
  CHECK(fit_json(groups, config).at("groups").items()[1].at("held_out").items().size() == 1);
}

TEST_CASE("a chart of fits has bands from five points on, and runs where they were trained", "[fast]") {
  std::vector<Json> results = made_up_results();
  for (Json& r : results) {  // planned alone
    if (r.at("level").as_int() == 8) { r.erase("loss.final"); }
  }
  const auto chart = [&](const char* fitted) {
    FitConfig config = by_arch();
    config.fit_ids = {fitted};
    return fit_chart(fit_groups(results, config), config);
  };
  CHECK_THAT(chart("*-[1-4]"), Contains("Scaling") && !Contains("95 % bands") && !Contains("nan"));
  CHECK_THAT(chart("*-[1-5]"), Contains("Scaling, with 95 % bands of a new run") && !Contains("nan"));
}

TEST_CASE("tables of fits hold every coefficient, point and prediction in full", "[fast]") {
  const FitConfig config = by_arch();
  const std::vector<FitGroup> groups = fit_groups(made_up_results(), config);
  const auto tables = fit_tables(groups, config);
  REQUIRE(tables.size() == 3);
  const Table &fits = tables[0].second, &points = tables[1].second, &shares = tables[2].second;
  CHECK(tables[0].first == "fit.csv");
  CHECK_THAT(fits.csv(), StartsWith("group,points,a,a_low,a_high,b,b_low,b_high,c,r2,interval\nfull,7,"));
  REQUIRE(fits.rows.size() == 2);
  CHECK(fits.rows[1][2].as_double() == groups[1].fit->a);
  CHECK(fits.rows[1][6].as_double() == groups[1].fit->b_interval->low);
  CHECK(fits.rows[1][7].as_double() == groups[1].fit->b_interval->high);
  CHECK(tables[1].first == "fit_points.csv");
  CHECK_THAT(points.csv(), StartsWith("group,run,flops.total,loss.final,fitted,low,high\nfull,full-1,2e+18,"));
  REQUIRE(points.rows.size() == 16);  // seven points and a prediction each
  CHECK(points.rows[7][1].as_string() == "full-8");
  CHECK(points.rows[7][3].as_double() == groups[0].held_out[0].measured);
  CHECK(points.rows[7][4].as_double() == groups[0].held_out[0].predicted.y);
  CHECK(points.rows[7][5].as_double() == groups[0].held_out[0].predicted.interval->low);
  CHECK(tables[2].first == "fit_shares.csv");
  CHECK(shares.rows[0][4].as_double() == Approx(1).epsilon(1e-9));
  CHECK(shares.rows[1][4].as_double() == Approx(std::pow(30.0 / 29, -20)).epsilon(1e-6));
}

TEST_CASE("a share of FLOPs far outside of all runs is a bound", "[fast]") {
  std::vector<Json> results = made_up_results();
  for (Json& r : results) {  // sdm hardly improves: it would need 28 orders of magnitude more
    if (r.at("arch").as_string() == "sdm") {
      r.set("loss.final", 9.0 * std::pow(r.at("flops.total").as_double(), -0.01));
    }
  }
  CHECK_THAT(fit_text(fit_groups(results, by_arch()), by_arch()), Contains("| > 100 |"));
}

TEST_CASE("a curve through as many points as it has coefficients is not reported as a fit", "[fast]") {
  FitConfig config = by_arch();
  config.fit_ids = {"full-[12]", "sdm-*"};
  config.predict_ids = {"full-8"};
  const std::vector<FitGroup> groups = fit_groups(made_up_results(), config);
  const std::string text = fit_text(groups, config);
  CHECK_THAT(text, Contains("| full | 2 | 30 | 0.05000 | – | – | none: no degree of freedom is left |\n") &&
                       Contains("A curve with 2 coefficients goes through 2 points exactly") && Contains("| full-8 |"));
  CHECK_THAT(fit_chart(groups, config), Contains("full: curve through 2 points") && Contains("sdm: fit, R² 1.0000"));
  CHECK(fit_json(groups, config).at("groups").items()[0].at("r2").is_null());
  CHECK_THAT(fit_text(fit_groups(made_up_results(), by_arch()), by_arch()), !Contains("exactly"));
}

FOLDER_TEST("a report says which losses are not finite", "[fast]") {
  std::vector<Json> results = made_up_results();
  results[1].set("val.text", NAN);
  CHECK_THAT(report_of(folder, runs_of(results), by_arch()), Contains("\nNot finite: val.text of full-2. "));
  results.erase(results.begin() + 1);
  CHECK_THAT(report_of(folder, runs_of(results), by_arch()), !Contains("Not finite"));
}

FOLDER_TEST("levels stand side by side with the difference to the first group; what is missing stays empty", "[fast]") {
  std::vector<Json> results = made_up_results();
  std::erase_if(results, [](const Json& result) { return result.at("id").as_string() == "sdm-2"; });
  const std::string text = report_of(folder, runs_of(results), by_arch());
  const double full = 30.0 * std::pow(2e18, -0.05), sdm = 29.0 * std::pow(2e18, -0.05);
  char expected[80];
  std::snprintf(expected, sizeof expected, "| 1 | %.5g | %.5g (%+.4f) |", full, sdm, sdm - full);
  CHECK_THAT(text, Contains(expected) && Contains("| level | full | sdm |"));
  CHECK_THAT(read_file(folder / "report" / "levels.csv"),
             Contains("level,full,sdm\n1," + Json(full).dump() + "," + Json(sdm).dump() + "\n2,") && Contains(",\n3,"));
}

TEST_CASE("runs that differ in seeds only are one row: means with sample deviations", "[fast]") {
  std::vector<Json> results;
  for (const auto& [id, setting, loss] :
       {std::tuple{"gdn_seed=1", "g", 4.5}, {"gdn_seed=2", "g", 4.7}, {"full_seed=1", "f", 4.0}}) {
    Json r = Json::object({{"id", id},
                           {"setting", setting},
                           {"arch", setting},
                           {"level", "1"},
                           {"seed", loss},
                           {"flops.total", 1e12},
                           {"loss.final", loss}});
    if (loss > 4.2) { r.set("val.text", 2 * loss); }
    results.push_back(r);
  }
  results[1].erase("val.text");  // a value that not all have has no mean
  const std::vector<Json> rows = over_seeds(results);
  REQUIRE(rows.size() == 2);
  CHECK(has_seeds(rows));
  CHECK(rows[0].at("id").as_string() == "gdn");
  CHECK(rows[0].at("runs").as_int() == 2);
  CHECK(rows[0].at("loss.final").as_double() == Approx(4.6));
  CHECK(rows[0].at("loss.final.std").as_double() == Approx(0.2 / std::sqrt(2.0)));
  CHECK(rows[0].at("loss.final.half").as_double() == Approx(12.7062047 * 0.1).epsilon(1e-6));  // t of one degree
  CHECK((rows[0].find("seed") == nullptr && rows[0].find("val.text") == nullptr &&
         rows[0].at("flops.total").as_double() == 1e12));
  CHECK(rows[1].at("id").as_string() == "full_seed=1");
  CHECK(rows[1].find("loss.final.std") == nullptr);
  CHECK_THAT(comparison_of(rows),
             Contains("| gdn | 2 | g | 1 | 1.0000e+12 | 4.6 ± 1.3 |") && !Contains("loss.final.std"));
  CHECK(mean_text(4.521936, 0.000062) == "4.5219 ± 0.0001");
  CHECK(mean_text(400000, 26433) == "400000 ± 26433");
  CHECK(mean_text(0.25, 0) == "0.25000 ± 0.00000");

  const TempFolder folder;
  FitConfig fit = by_arch();
  fit.fit_ids = {"*"};
  for (Json& result : results) {
    result.set("eval.e.documents", 2);
    result.set("val.held", result.at("loss.final").as_double() + 1);
    result.set("ppl.held", std::exp(result.at("val.held").as_double()));
  }
  CHECK_THAT(report_of(folder, runs_of(results), fit),
             Contains("## Results over seeds") && Contains("| 1 | 4.6 ± 1.3 | 4 (-0.6000) |"));
  CHECK_THAT(read_file(folder / "report" / "seeds.csv"),
             StartsWith("row,statistic,unit,seeds,mean,low,high,std\ngdn,loss.final,nats per token,2,4.6,3.32") &&
                 Contains("\nfull_seed=1,loss.final,nats per token,1,4.0,,,\n"));
  CHECK_THAT(read_file(folder / "report/plots/seeds_loss.final.svg"), Contains("<title>full_seed=1: 4, one seed: no"));
  CHECK_FALSE(fs::exists(folder / "report/plots/seeds_eval.e.documents.svg"));  // the same everywhere
  CHECK(fs::exists(folder / "report/plots/seeds_val.held.svg"));
  CHECK_FALSE(fs::exists(folder / "report/plots/seeds_ppl.held.svg"));  // the loss in other words
  // Other settings at one level, say learning rates, are not averaged.
  results[1].set("setting", "other");
  CHECK_THAT(report_of(folder, runs_of(results), fit), Contains("| 1 | 2 settings | 4 |") &&
                                                           !Contains("## Results over seeds") &&
                                                           Contains("One seed for each configuration: there are no "));
}

TEST_CASE("a setting is a configuration without name, seeds and what results do not depend on", "[fast]") {
  const auto setting = [](const char* text) { return setting_of(parse_json(text, "config.json")); };
  const std::string one = setting(
      R"({"name": "a", "train": {"seed": 1, "threads": 2, "steps": 5}, "data": {"seed": 1, "sources": [{"path": "t", "seed": 3}]}})");
  CHECK(
      one ==
      setting(
          R"({"name": "b", "train": {"seed": 2, "threads": 1, "steps": 5}, "data": {"seed": 2, "sources": [{"path": "t", "seed": 4}]}})"));
  CHECK(
      one !=
      setting(
          R"({"name": "a", "train": {"seed": 1, "threads": 2, "steps": 6}, "data": {"seed": 1, "sources": [{"path": "t", "seed": 3}]}})"));
  CHECK(
      one !=
      setting(
          R"({"name": "a", "train": {"seed": 1, "threads": 2, "steps": 5}, "data": {"seed": 1, "sources": [{"path": "u", "seed": 3}]}})"));
}

namespace {

/// Three seeds of each of some rows with these losses; a level each.
std::vector<Json> seeded(const std::vector<std::tuple<std::string, std::string, std::vector<double>>>& rows) {
  std::vector<Json> results;
  for (const auto& [name, level, losses] : rows) {
    for (size_t k = 0; k < losses.size(); ++k) {
      const std::string seed = std::to_string(k + 1);
      results.push_back(Json::object({{"id", name + "_seed=" + seed},
                                      {"arch", name},
                                      {"level", level},
                                      {"setting", name},
                                      {"seeds", seed + " "},
                                      {"loss@data", name == "other" ? "y" : "x"},
                                      {"loss.final", losses[k]}}));
    }
  }
  return results;
}

}  // namespace

FOLDER_TEST("rows are tested against the first one, paired by seed, and Holm corrects over the table", "[fast]") {
  // Differences 1, 2, 3: mean 2, standard error 1/sqrt(3), t = 3.4641 of 2 degrees: p = 0.0741801.
  const std::vector<Json> results =
      seeded({{"a", "1", {4, 5, 6}}, {"b", "1", {5, 7, 9}}, {"c", "1", {4, 5, 7}}, {"lone", "1", {4}}});
  const std::vector<ReportPart> parts = report_seed_tests(results, "");
  REQUIRE(parts.size() == 1);
  const Table& numbers = parts[0].numbers;
  REQUIRE(numbers.rows.size() == 2);  // a single pair is no test
  CHECK(numbers.titles() ==
        std::vector<std::string>{"statistic", "row", "minus", "seeds", "difference", "low", "high", "p", "p_holm"});
  CHECK(numbers.rows[0][1].as_string() == "b");
  CHECK(numbers.rows[0][2].as_string() == "a");
  CHECK(numbers.rows[0][4].as_double() == Approx(2));
  CHECK(numbers.rows[0][5].as_double() == Approx(2 - 4.30265273 / std::sqrt(3)));
  CHECK(numbers.rows[0][7].as_double() == Approx(0.0741801).epsilon(1e-5));
  CHECK(numbers.rows[0][8].as_double() == Approx(2 * 0.0741801).epsilon(1e-5));
  CHECK(numbers.rows[1][8].as_double() == Approx(0.4226497).epsilon(1e-5));
  CHECK_THAT(parts[0].text, Contains("paired by seed") && Contains("Holm"));
  std::vector<Json> turned = results;
  std::swap(turned[3], turned[5]);  // the seeds of b in another order
  CHECK(report_seed_tests(turned, "")[0].numbers.csv() == parts[0].numbers.csv());
  const std::string page = report_of(folder, runs_of(results));
  CHECK(page.find("## Results of each run") < page.find("## Tests over seeds"));
  CHECK_THAT(read_file(folder / "report/tests.csv"),
             StartsWith("statistic,row,minus,seeds,difference,low,high,p,p_holm\n"));
}

TEST_CASE("rows of other levels, seeds or data are not tested against each other", "[fast]") {
  const auto tested = [](std::vector<Json> results, const std::string& level) {
    std::string pairs;
    for (const ReportPart& part : report_seed_tests(results, level)) {
      for (const auto& row : part.table.rows) { pairs += row[1].as_string() + "-" + row[2].as_string() + " "; }
    }
    return pairs;
  };
  const std::vector<Json> levels =
      seeded({{"a", "1", {4, 5}}, {"b", "2", {5, 6}}, {"c", "1", {4, 6}}, {"d", "2", {7, 6}}});
  CHECK(tested(levels, "level") == "c-a d-b ");
  CHECK(tested(levels, "") == "b-a c-a d-a ");
  CHECK(tested(seeded({{"a", "1", {4, 5}}, {"other", "1", {5, 6}}}), "").empty());
  std::vector<Json> seeds = seeded({{"a", "1", {4, 5}}, {"b", "1", {5, 6}}});
  for (size_t k = 2; k < 4; ++k) { seeds[k].set("seeds", std::to_string(k + 7) + " "); }
  CHECK(tested(seeds, "").empty());
}

FOLDER_TEST("curves of several seeds are drawn as their mean with a band", "[fast]") {
  std::vector<ReportRun> runs = runs_of(seeded({{"a", "1", {4, 6}}}));
  for (ReportRun& run : runs) {
    const double loss = run.result.at("loss.final").as_double();
    run.metrics.loss = {"training loss", {1, 2}, {loss + 1, loss}};
  }
  report_of(folder, runs);
  CHECK_THAT(
      read_file(folder / "report/plots/mean_Training_loss.svg"),
      Contains("data-name=\"a\" data-v=\"1 6;2 5\"") && Contains("class=\"band\" data-v=\"1 -6.706205 18.7062;"));
}

FOLDER_TEST("details of a run are its date, version, machine, device and precision", "[fast]") {
  const std::string at = "2026-11-28 02:00:12.516 +00:00 [info] rank 0: ";
  folder.write("run/train.log", at + "hebb 0.1.0, commit 88c4\n" + at + "device: cpu, 2 threads, precision fp32\n" +
                                    at + "step 1/2 device: none\n" + at + "hebb 0.1.0, commit 99d5\n" + at +
                                    "device: cpu, 2 threads, precision bf16 (train.device is auto)\n");
  folder.write("run/tb/events.out.tfevents.1795831212.host.lan.29163", "");
  std::vector<ReportRun> runs = runs_of({Json::object({{"id", "r"}})});
  runs[0].folder = folder / "run";
  CHECK(run_details(runs).csv() ==
        "run,started,hebb,machine,device,precision\nr,\"2026-11-28 02:00:12 +00:00, 1 more\","
        "\"0.1.0, commit 88c4; 0.1.0, commit 99d5\",host.lan,\"cpu, 2 threads\",fp32; bf16\n");
  runs[0].folder = folder / "nowhere";
  CHECK(run_details(runs).rows.empty());
}

TEST_CASE("what a number means and its unit is said once for each statistic", "[fast]") {
  const Table table = meanings_of({"loss.final", "val.a [data A]", "val.a [data B]", "val.b", "eval.n.exact", "level"},
                                  {{"n", "niah"}, {"absent", "ruler"}});
  CHECK(
      table.csv() ==
      "statistic,unit,meaning,page\n"
      "loss.final,nats per token,mean of the training losses logged in the last 5 % of the steps,docs/verbs/report.md\n"
      "val.NAME,nats per token,cross-entropy of the last validation on NAME,docs/data.md\n"
      "eval.n.METRIC,,of the evaluation n (niah); shares are fractions,docs/evaluations/niah.md\n");
  for (const auto& row : table.rows) { CHECK(fs::exists(fs::path(HEBB_SOURCE) / row[3].as_string())); }
  CHECK(unit_of("eval.n.nll (builtin)") == "nats per token");
  CHECK(unit_of("eval.n.bits_per_byte [data A]") == "bits per byte");
  CHECK(unit_of("eval.n.exact (builtin) [data A]").empty());
}

TEST_CASE("differences of configurations leave out defaults and fold a layer that others do not have", "[fast]") {
  const SweepFolder folder;
  RunConfig config = read_run_config((folder / "base.json").string());
  Json a = to_json(config), b = a;
  b.find("optimizer")->set("lr", Json(0.5));
  b.find("model")->find("layers")->erase("gdn");
  CHECK(config_differences({"a", "b"}, {a, b}).csv() == "key,a,b\nmodel.layers.gdn.type,gdn,\noptimizer.lr,0.01,0.5\n");
  // A key that one of them does not have, and that the other has at its default.
  Json c = a;
  c.find("train")->erase("log_every");
  a.find("train")->set("log_every", Json(RunConfig().train.log_every));
  CHECK(config_differences({"a", "c"}, {a, c}).rows.empty());
}

TEST_CASE("entries of a legend keep to their columns, however long their names are", "[fast]") {
  const std::string longer(45, 'x'), longest(120, 'y');
  const auto places = [](const std::string& svg) {
    std::vector<std::pair<double, double>> at;
    const std::regex entry(
        "<line x1=\"([0-9.]+)\" x2=\"[0-9.]+\" y1=\"([0-9.]+)\" y2=\"[0-9.]+\" stroke=\"#[0-9a-f]+\" "
        "stroke-width=\"3\"");
    for (std::sregex_iterator it(svg.begin(), svg.end(), entry), end; it != end; ++it) {
      at.emplace_back(std::stod((*it)[1]), std::stod((*it)[2]));
    }
    return at;
  };
  const auto chart = [](const std::string& name) {
    return svg_chart({{name, {1, 2}, {1, 2}}, {name + "b", {1, 2}, {2, 3}}}, {"A", "x", "y"});
  };
  const auto two = places(chart("short")), one = places(chart(longer));
  REQUIRE(two.size() == 2);
  CHECK(two[0].second == two[1].second);
  REQUIRE(one.size() == 2);
  CHECK(one[0].first == one[1].first);
  CHECK(one[0].second < one[1].second);
  CHECK_THAT(chart(longer), Contains(">" + longer + "</text>"));
  CHECK_THAT(chart(longest),
             !Contains(">" + longest + "</text>") && Contains("…") && Contains("<title>" + longest + "</title>"));
}

FOLDER_TEST("a repeated run is no second seed, and the report says so", "[fast]") {
  std::vector<Json> results;
  for (const auto& [id, seeds, loss] : {std::tuple{"q1", "1 1", 4.5}, {"q2", "1 1", 4.5}, {"q3", "2 2", 4.7}}) {
    results.push_back(Json::object({{"id", id}, {"loss.final", loss}, {"setting", "s"}, {"seeds", seeds}}));
  }
  const std::vector<Json> rows = over_seeds(results);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].at("runs").as_int() == 2);
  CHECK(rows[0].at("loss.final").as_double() == Approx(4.6));
  CHECK_FALSE(has_seeds(over_seeds({results[0], results[1]})));
  CHECK_THAT(report_of(folder, runs_of(results)),
             Contains("Left out of the means, since configuration and seeds equal another run's: q2 (q1)."));
}

FOLDER_TEST("losses and evaluations on different data share no column and no drawing", "[fast]") {
  const auto run = [&](const char* id, const char* data) {
    ReportRun r = runs_of({Json::object({{"id", id},
                                         {"loss.final", 4.5},
                                         {"val.held", 5.5},
                                         {"ppl.held", 8.5},
                                         {"eval.e.nll", 6.5},
                                         {"eval.e.bits_per_byte", 7.5},
                                         {"loss@data", data},
                                         {"val.held@data", data},
                                         {"eval.e@data", "same"},
                                         {"eval.e@tokens", data}})})[0];
    r.metrics.loss = {id, {1, 2}, {5, 4}};
    r.metrics.validation = {{"held", {1, 2}, {6, 5}}};
    return r;
  };
  const ReportRun one = run("one", "x"), two = run("two", "y"), three = run("three", "x");
  CHECK(csv_of({one.result, two.result, three.result}) ==
        "id,loss.final [data A],val.held [data A],ppl.held [data A],eval.e.nll [data A],eval.e.bits_per_byte,"
        "loss.final [data B],val.held [data B],ppl.held [data B],eval.e.nll [data B]\n"
        "one,4.5,5.5,8.5,6.5,7.5,,,,\ntwo,,,,,7.5,4.5,5.5,8.5,6.5\nthree,4.5,5.5,8.5,6.5,7.5,,,,\n");
  CHECK_THAT(csv_of({one.result, three.result}), Contains("id,loss.final,val.held,ppl.held,eval.e.nll,"));
  CHECK_THAT(report_of(folder, {one, two, three}), Contains("do not compare"));
  for (const char* file : {"loss_A.svg", "loss_B.svg", "validation_A.svg", "validation_B.svg"}) {
    CHECK(fs::exists(folder / "report/plots" / file));
  }
  CHECK_THAT(read_file(folder / "report/plots/loss_A.svg"), Contains("one</text>") && !Contains("two</text>"));
}

TEST_CASE("an evaluation's data may lie elsewhere and stays the same", "[fast]") {
  const auto data = [](const std::string& path, const std::string& inputs, bool per_token, const char* tokenizer) {
    return evaluation_data(Json::object({{"config", Json::object({{"data", Json::object({{"path", path}})}})},
                                         {"inputs", inputs},
                                         {"tokenizer", tokenizer}}),
                           per_token);
  };
  CHECK(data("/a/x.bin", "1", true, "t") == data("b/x.bin", "1", true, "t"));
  CHECK(data("/a/x.bin", "1", true, "t") != data("/a/y.bin", "1", true, "t"));
  CHECK(data("/a/x.bin", "1", true, "t") != data("/a/x.bin", "2", true, "t"));
  CHECK(data("/a/x.bin", "1", true, "t") != data("/a/x.bin", "1", true, "u"));
  CHECK(data("/a/x.bin", "1", false, "t") == data("/a/x.bin", "1", false, "u"));
}

TEST_CASE("what differs between configurations comes last, and few runs stand side by side", "[fast]") {
  const auto config = [](const char* text) { return parse_json(text, "config.json"); };
  const Json a = config(R"({"name": "a", "optimizer": {"lr": 0.1, "betas": [1, 2]}, "list": [{"x": 1}]})"),
             b = config(R"({"name": "b", "optimizer": {"lr": 0.2, "betas": [1, 2]}, "list": [{"x": 1}, {"x": 2}]})");
  CHECK(config_differences({"a", "b"}, {a, b}).markdown() ==
        "| key | a | b |\n|---|---:|---:|\n| optimizer.lr | 0.1 | 0.2 |\n| list.1.x | – | 2 |\n");
  CHECK(config_differences({"a", "a2"}, {a, a}).rows.empty());
  CHECK(config_differences({"1", "2", "3", "4", "5"}, {a, a, b, a, a}).csv() ==
        "id,optimizer.lr,list.1.x\n1,0.1,\n2,0.1,\n3,0.2,2\n4,0.1,\n5,0.1,\n");

  Json many = Json::object({{"id", "r"}});
  for (int i = 0; i < 12; ++i) { many.set("eval.e.m" + std::to_string(i), i + 0.5); }
  CHECK_THAT(comparison_of({many, many}), StartsWith("| id | r | r |\n|---|---:|---:|\n| eval.e.m0 | 0.5 | 0.5 |\n"));
  CHECK_THAT(comparison_of({many, many, many, many, many}), StartsWith("| id | eval.e.m0 |"));

  const TempFolder folder;
  const std::string text = report_of(folder, {{"a", "/nowhere", {}, many, a}, {"b", "/nowhere", {}, many, b}});
  size_t last = 0;
  for (const char* part : {"What hebb report found in 2 runs: ", "## Results of each run", "## Loss", "## Optimizer",
                           "## What differs between the configurations"}) {
    INFO(part);
    CHECK(text.find(part, last) != std::string::npos);
    last = text.find(part);
  }
}

TEST_CASE("labels of an axis do not run into each other, and every curve has a name and a line of its own", "[fast]") {
  std::vector<Curve> curves;
  for (int i = 0; i < 20; ++i) { curves.push_back({"run " + std::to_string(i), {2e11, 3.9e11}, {3.0 + i, 2.5}}); }
  const std::string svg = svg_chart(curves, {"Loss", "FLOPs", "loss", true, true});
  std::vector<double> ends;
  const std::regex label("<text x=\"([0-9.]+)\" y=\"342\" text-anchor=\"middle\">([^<]*)<");
  for (std::sregex_iterator it(svg.begin(), svg.end(), label), end; it != end; ++it) {
    const double middle = std::stod((*it)[1]), half = 20;  // "2·10¹¹" is wider than 40
    CHECK(middle + half < 560);
    if (!ends.empty()) { CHECK(middle - half > ends.back()); }
    ends.push_back(middle + half);
  }
  CHECK(ends.size() >= 2);
  for (int i = 0; i < 20; ++i) { CHECK_THAT(svg, Contains(">run " + std::to_string(i) + "</text>")); }
  std::set<std::string> strokes;
  const std::regex line("<polyline fill=\"none\" ([^>]*) points");
  for (std::sregex_iterator it(svg.begin(), svg.end(), line), end; it != end; ++it) { strokes.insert((*it)[1]); }
  CHECK(strokes.size() == 20);
}

TEST_CASE("on a terminal all curves share an axis, and each has a character and a name of its own", "[fast]") {
  std::vector<Curve> curves;
  for (int i = 0; i < 12; ++i) { curves.push_back({"run " + std::to_string(i), {1, 2}, {3.0 + i, 3.0 + i}}); }
  const std::string text = text_chart(curves, "loss", 60, 26);
  CHECK_THAT(text, StartsWith("loss\n       14 +") && Contains("\n        4 +"));
  std::set<char> marks;
  for (const Curve& c : curves) {
    const size_t at = text.find(" " + c.name + "\n");
    REQUIRE(at != std::string::npos);
    CHECK(marks.insert(text[at - 1]).second);
    CHECK(std::count(text.begin(), text.end(), text[at - 1]) >= 3);  // two points and the name
  }
}

TEST_CASE("the axis of a terminal has round values, each beside the row where it is", "[fast]") {
  const std::string text = text_chart({{"loss", {0, 1, 2, 3}, {10.37, 6, 4, 2.18}}}, "loss", 60, 22);
  std::vector<double> values;
  std::vector<int> rows;
  std::istringstream lines(text);
  std::string line;
  for (int row = -1; std::getline(lines, line) && line.find("+---") == std::string::npos; ++row) {
    if (line.size() < 11 || line[10] != '+') { continue; }
    values.push_back(std::stod(line));
    rows.push_back(row);
    if (values.back() == 6 || values.back() == 4) { CHECK(line.find('*') != std::string::npos); }
  }
  CHECK(values == std::vector<double>{10, 8, 6, 4});
  CHECK(rows.back() == std::lround((10.37 - 4) / (10.37 - 2.18) * 18));
}

TEST_CASE("labels of neighbours on an axis differ", "[fast]") {
  const std::vector<Curve> curves{{"a", {1, 2}, {1.00001, 1.00003}}};
  CHECK_THAT(text_chart(curves, "loss", 60, 22), Contains("1.00001 +") && Contains("1.00002 +"));
  CHECK_THAT(svg_chart(curves, {"A", "x", "y"}), Contains(">1.00001<") && Contains(">1.00002<"));
  CHECK_THAT(svg_chart({{"a", {1, 2}, {12345.1, 12345.3}}}, {"A", "x", "y"}), Contains(">12345.2<"));
}

TEST_CASE("a group with too few points says so instead of a fit", "[fast]") {
  std::vector<Json> results = made_up_results();
  results.resize(1);
  const std::vector<FitGroup> groups = fit_groups(results, by_arch());
  REQUIRE(groups.size() == 1);
  CHECK(!groups[0].fit);
  CHECK_THAT(fit_text(groups, by_arch()), Contains(" fit: found 1 distinct x") && !Contains("no fit"));
}

TEST_CASE("a chart names its axes, draws every mark, and has ticks in less than a decade", "[fast]") {
  const std::string svg = svg_chart({{"line <1>", {1, 2, 3}, {2.5, 2.7, 2.9}},
                                     {"dots", {1, 3}, {2.6, 2.8}, Mark::points},
                                     {"", {1, 3}, {2.6, 2.6}, Mark::dashed, 1}},
                                    {"Title", "steps [1000]", "loss [nats]", false, true});
  CHECK_THAT(svg, Contains("steps [1000]") && Contains("loss [nats], log scale") && Contains("line &lt;1&gt;") &&
                      Contains("<circle") && Contains("stroke-dasharray"));
  CHECK_THAT(svg, Contains(">2.6</text>") && Contains(">2.8</text>"));
  CHECK_THAT(svg_chart({}, {"Empty", "x", "y"}), Contains("Empty"));
}

TEST_CASE("results are written for programs and for people", "[fast]") {
  std::vector<Json> results = made_up_results();
  results.resize(2);
  results[0].set("note", "a,\"b\"");
  results[1].set("params.active", 7);
  CHECK(csv_of(results).substr(0, 53) == "id,arch,level,flops.total,loss.final,note,params.acti");
  CHECK_THAT(csv_of(results), Contains("\"a,\"\"b\"\"\""));
  CHECK_THAT(comparison_of(results),
             Contains("| full-1 | full | 1 | 2.0000e+18 |") && Contains("| – |") && !Contains("params.active"));
  CHECK(result_number(results[0], "loss.final") == 30.0 * std::pow(2e18, -0.05));
  CHECK(std::isnan(result_number(results[0], "arch")));
}

FOLDER_TEST("metrics of a running trainer are read without its unfinished line; a damaged line is an error", "[fast]") {
  const std::string line =
      R"({"step": 1, "tokens": 36, "loss": 3.5, "lr": 0.1, "grad_norm": 1, "tokens_per_s": 10, "mem_bytes": 5, "layers": {"blocks.0.mixer": {"gate": 0.25}}})";
  folder.write("run/metrics.jsonl", line + "\n{\"step\": 2, \"lo");
  const RunMetrics m = read_metrics(folder / "run");
  CHECK(m.name == "run");
  CHECK(m.loss.y == std::vector<double>{3.5});
  CHECK(m.tokens == std::vector<double>{36});
  CHECK(m.mem_bytes == 5);
  CHECK(m.statistics.at("gate")[0].name == "blocks.0.mixer");
  folder.write("run/metrics.jsonl", line + "\n{\"step\": 2, \"lo\n");
  CHECK_THROWS_WITH(read_metrics(folder / "run"), Contains("metrics.jsonl:2"));
}

FOLDER_TEST("a line of metrics of another form is an error with its place", "[fast]") {
  const auto error = [&](const std::string& line) {
    folder.write("run/metrics.jsonl", "{\"step\": 1, \"loss\": \"nan\"}\n" + line + "\n");
    return thrown<DataError>([&] { read_metrics(folder / "run"); });
  };
  const std::string at = "not a metrics line: " + (folder / "run/metrics.jsonl").string() + ":2:";
  CHECK(error("1") == at + "1: found 1, expected an object");
  CHECK(error("[]") == at + "1: found an array, expected an object");
  CHECK(error("{}") == at + "1: found no member \"step\", expected an object that has it");
  CHECK(error("{\"step\": 18446744073709551615}") ==
        at + "10: found 18446744073709551615, expected an integer below 2^63");
  CHECK(error("{\"step\": 2, \"loss\": \"low\"}") == at + "21: found \"low\", expected a number");
  CHECK(error("{\"step\": 2, \"val\": 3}") == at + "20: found 3, expected a string");
  CHECK(error("{\"step\": 2, \"tokens\": 1e300}") == at + "23: found 1e+300, expected an integer");
  CHECK(error("{\"step\": 2, \"layers\": {\"a\": 1}}") == at + "29: found 1, expected an object");
}

FOLDER_TEST("states and runs of a ladder that have another form are errors of the file", "[fast]") {
  const auto status = [&](const std::string& text) {
    folder.write("a/status.json", text);
    return thrown<CheckpointError>([&] { read_status(folder / "a"); });
  };
  const std::string in_status = (folder / "a/status.json").string() + ": not a status";
  for (const char* text : {"[]", "1", "{}", "{\"state\": 3}", "{\"state\": \"done\", \"pid\": 18446744073709551615}",
                           "{\"state\": \"done\", \"pid\": 4294967296}", "{\"state\": \"done\", \"step\": \"x\"}"}) {
    INFO(text);
    CHECK_THAT(status(text), StartsWith(in_status));
  }
  CHECK_THAT(status("{\"state\": \"done\", \"pid\": -1}"),
             Contains(":1:26: found -1, expected the number of a process"));
  const auto sweep = [&](const std::string& text) {
    folder.write("sweep.json", text);
    return thrown<CheckpointError>([&] { read_ladder(folder.path()); });
  };
  for (const char* text :
       {"[]", "{}", "{\"runs\": 1}", "{\"runs\": [1]}", "{\"runs\": [{}]}", "{\"runs\": [{\"id\": \"../a\"}]}",
        "{\"runs\": [{\"id\": \"a\", \"tags\": []}]}", "{\"runs\": [{\"id\": \"a\", \"tags\": {\"t\": []}}]}",
        "{\"runs\": [], \"planned\": [1]}", "{\"runs\": [], \"planned\": [{}]}", "{\"runs\": [], \"fit\": 3}"}) {
    INFO(text);
    CHECK_THAT(sweep(text), StartsWith((folder / "sweep.json").string() + ": not a ladder: "));
  }
  CHECK(sweep("{\"name\": \"n\", \"runs\": []}").empty());
}

TEST_CASE("the page of a report is self-contained and every plot is a file too") {
  const SweepFolder folder;
  train_one(folder);
  const fs::path page = write_report("One run", {read_report_run(folder / "one")}, std::nullopt, folder / "report");
  const std::string html = read_file(page);
  CHECK_THAT(html, Contains("<svg") && Contains("width=device-width") && Contains(">val.held<") && !Contains("href") &&
                       !Contains("src="));
  for (const char* file : {"report.md", "results.md", "results.csv", "results.json", "plots/loss.svg", "plots/lr.svg",
                           "plots/grad_norm.svg"}) {
    CHECK(fs::exists(folder / "report" / file));
  }
  CHECK_THROWS_WITH(read_report_run(folder / "nothing"), Contains("nothing"));
}

TEST_CASE("checkpoints of a run stand side by side, each with its metrics and evaluations") {
  const SweepFolder folder;
  train_one(folder, 10);
  folder.write("one/evals/step_00000004/e.json",
               R"({"name": "e", "kind": "cloze", "status": "ok", "metrics": {"ppl": {"value": 7.5}}})");
  const ReportRun early = read_report_run(folder / "one/checkpoints/step_00000004"),
                  late = read_report_run((folder / "one/checkpoints/step_00000012").string() + "/");
  CHECK(early.id == "one:4");
  CHECK(late.id == "one:12");
  CHECK(early.metrics.loss.x == std::vector<double>{1, 2, 3, 4});
  CHECK(early.result.at("step").as_int() == 4);
  CHECK(late.result.at("step").as_int() == 12);
  CHECK(early.result.at("tokens").as_int() == 4 * 36);
  CHECK(early.result.at("eval.e.ppl").as_double() == 7.5);
  CHECK(late.result.find("eval.e.ppl") == nullptr);
  CHECK_FALSE(has_seeds(over_seeds({early.result, late.result})));
  CHECK_FALSE(has_same_seeds(early.result, late.result));
  CHECK_THAT(report_of(folder, {early, late}), Contains("| one:4 | ") && !Contains("Left out of the means"));
  // A pattern of a shell names the pointer, too.
  const std::string checkpoints = (folder / "one/checkpoints").string();
  CHECK(run_hebb({"report", checkpoints + "/latest", checkpoints + "/step_00000004", checkpoints + "/step_00000012",
                  "-o", (folder / "page").string()},
                 folder / "said")
            .code == 0);
  CHECK_THAT(read_file(folder / "page/report.md"), Contains("| one:4 | one:12 |"));
  const Result alone = run_hebb({"report", checkpoints + "/latest", "-o", (folder / "none").string()}, folder / "said");
  CHECK(alone.code == 3);
  CHECK_FALSE(fs::exists(folder / "none"));
}

FOLDER_TEST("results without a run are drawn, from a folder of them or beside a checkpoint", "[fast]") {
  const auto result = [](double ppl) {
    return R"({"name": "e", "kind": "cloze", "status": "ok", "step": 7, "metrics": {"ppl": {"value": )" +
           std::to_string(ppl) + "}}}";
  };
  folder.write("res/e.json", result(7.5));
  folder.write("res/e.0123456789abcdef.json", result(9));  // one that has no place
  folder.write("ckpt/config.json", "{}");
  folder.write("ckpt/evals/e.json", result(8.5));
  folder.write("empty/config.json", "{}");
  const ReportRun res = read_report_run(folder / "res"), ckpt = read_report_run(folder / "ckpt/");
  CHECK(res.id == "res");
  CHECK(ckpt.id == "ckpt");
  CHECK(res.result.at("eval.e.ppl").as_double() == 7.5);
  CHECK(res.result.at("step").as_int() == 7);
  CHECK_THAT(report_of(folder, {res, ckpt}), Contains("| res | ") && Contains("7.5") && Contains("8.5") &&
                                                 !Contains("## Loss") && !Contains("## Optimizer"));
  CHECK_THROWS_WITH(read_report_run(folder / "empty"), Contains("neither a run nor results"));
}

FOLDER_TEST("runs have the same data where the fingerprints of their checkpoints say so", "[fast]") {
  const auto identity = [&](const std::string& run, const std::string& data, const std::string& print) {
    folder.write(run + "/checkpoints/step_00000004/state.json",
                 R"({"loader": {"sources": [{"path": "any", "fingerprint": ")" + print + "\"}]}}");
    folder.write(run + "/checkpoints/latest", "step_00000004\n");
    Json result = Json::object();
    const Json config =
        parse_json(R"({"data": {"tokenizer": {"type": "bytes"}, "sources": [{"path": ")" + data +
                       R"("}], "validation": [{"name": "held", "path": ")" + data + R"(/val_*.bin"}]}})",
                   "config.json");
    add_identity(result, config, {folder / run});
    return std::tuple{result.at("loss@data"), result.at("val.held@data"),
                      setting_of(without_data_places(config, {folder / run}))};
  };
  folder.write("here/train_00000.bin", "x");  // what lies at a path says nothing
  const auto a = identity("a", "/gone/corpus", "00aa"), b = identity("b", (folder / "here").string(), "00aa"),
             c = identity("c", "/gone/corpus", "00cc");
  CHECK(a == b);
  CHECK(std::get<0>(a) != std::get<0>(c));
  CHECK(std::get<1>(a) != std::get<1>(c));
  CHECK(std::get<2>(a) != std::get<2>(c));
  CHECK(std::get<0>(a) != std::get<1>(a));
}

FOLDER_TEST("memory statistics of runs stand side by side, and their drawings too", "[fast]") {
  const auto run = [&](const char* id, double gate) {
    ReportRun r = runs_of({Json::object({{"id", id}})})[0];
    r.metrics.loss = {id, {1, 2}, {5, 4}};
    r.metrics.statistics["gate"] = {{"blocks.0.mixer", {1, 2}, {0.5, gate}}, {"blocks.1.mixer", {1, 2}, {0.5, 0.125}}};
    return r;
  };
  CHECK_THAT(report_of(folder, {run("a", 0.25), run("b", 0.75)}),
             Contains("| statistic | layer | a | b |\n|---|---|---:|---:|\n"
                      "| gate | blocks.0.mixer | 0.25 | 0.75 |\n"
                      "| gate | blocks.1.mixer | 0.125 | 0.125 |\n"));
  CHECK_THAT(read_file(folder / "report/memory.csv"), Contains("b,blocks.0.mixer,gate,0.75,b/metrics.jsonl"));
  const std::string html = read_file(folder / "report/index.html");
  const auto count = [&](const std::string& text) {
    int found = 0;
    for (size_t at = html.find(text); at != std::string::npos; at = html.find(text, at + 1)) { ++found; }
    return found;
  };
  CHECK(count("<div class=\"small\">") == 1);
  CHECK(count("<div class=\"drawings\">") == 2);  // below "Loss" and "Optimizer"
  CHECK(count("<div") == count("</div>"));
}

TEST_CASE("a run of an earlier version, with keys that are none any more, is reported like one of today") {
  const SweepFolder folder;
  train_one(folder);
  const Json before = result_of({folder / "one"}, "one", Json::object());
  const fs::path file = folder / "one" / "config.json";
  Json stored = parse_json_file(file.string());
  stored.find("train")->set("deterministic", true);
  stored.find("train")->set("autotune", true);
  write_file_atomic(file, stored.dump(1));
  CHECK(result_of({folder / "one"}, "one", Json::object()).dump() == before.dump());
}
