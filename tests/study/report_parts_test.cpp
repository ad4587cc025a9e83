// Sections of a report that come from evaluations (docs/verbs/report.md).
#include "study/report/parts.h"

#include <fmt/core.h>

#include <regex>
#include <set>

#include "eval/item_values.h"
#include "study/report/chart_blocks.h"
#include "study/report/page.h"
#include "study/report/run_results.h"
#include "tests/temp_folder.h"
#include "tests/test.h"
#include "tests/thrown.h"

using Catch::EndsWith;

namespace {

/// Run folders with result files.
struct Runs {
  TempFolder folder;
  std::vector<ReportRun> runs;

  void add(const std::string& run, const std::string& name, const std::string& body) {
    folder.write(run + "/evals/step_00000010/" + name + ".json",
                 "{\"name\": \"" + name + "\", \"status\": \"ok\", " + body + "}");
    if (runs.empty() || runs.back().id != run) { runs.push_back({run, folder / run, {}, {}}); }
  }
  std::vector<ReportPart> parts() const {
    const Results all = load_evaluations(runs);
    std::vector<ReportPart> parts = report_tasks(all);
    for (const auto& more : {report_needle_depths, report_memories, report_differences}) {
      for (ReportPart& part : more(all)) { parts.push_back(std::move(part)); }
    }
    return parts;
  }
  ReportPart only() const {
    std::vector<ReportPart> all = parts();
    REQUIRE(all.size() == 1);
    return all[0];
  }
};

std::string ruler(const std::string& source, double score) {
  return R"("kind": "ruler", "source": ")" + source +
         R"(", "series": {"by_task": [{"task": "vt", "length": 4096, "score": )" + std::to_string(score) +
         R"(}, {"task": "cwe", "length": 4096, "score": 0.5}, {"task": "vt", "length": 8192, "score": 0.25}]})";
}

}  // namespace

TEST_CASE("results of different sources never share a column or a curve", "[fast]") {
  Runs r;
  r.add("one", "acc",
        R"("kind": "choice", "source": "builtin", "metrics": {"acc": {"value": 0.25}, "acc_token": {"value": 0.5}})");
  r.add("two", "acc", R"("kind": "choice", "source": "official", "metrics": {"acc": {"value": 0.75}})");
  r.add("two", "lambada", R"("kind": "cloze", "metrics": {"ppl": {"value": 12.3456789}})");
  const ReportPart part = r.only();
  CHECK(part.table.titles() ==
        std::vector<std::string>{"run", "acc (builtin) acc", "acc (official) acc", "lambada ppl"});
  CHECK_THAT(part.table.markdown(), Contains("| one | 25 | – | – |") && Contains("| two | – | 75 | 12.346 |"));
  CHECK_THAT(
      part.files.at(0).second.csv(),
      Contains("run,acc (builtin) acc,acc (builtin) acc_token,") &&
          Contains("two,,,0.75,12.3456789,two/evals/step_00000010/acc.json two/evals/step_00000010/lambada.json"));

  Json one = Json::object({{"id", "one"}, {"eval.acc.acc", 0.25}, {"eval.acc.source", "builtin"}});
  Json two = Json::object(
      {{"id", "two"}, {"eval.acc.acc", 0.75}, {"eval.acc.source", "official"}, {"eval.probe.sdm.unique_read", 0.5}});
  CHECK(results_table({one, two}).csv() ==
        "id,eval.acc.acc (builtin),eval.acc.acc (official),eval.probe.sdm.unique_read\none,0.25,,\ntwo,,0.75,0.5\n");
  CHECK_THAT(comparison_table({one, two}).markdown(),
             !Contains("unique_read"));  // numbers of layers have sections of their own
  two.set("eval.acc.source", "builtin");
  CHECK_THAT(results_table({one, two}).csv(), Contains("id,eval.acc.acc,eval.probe"));
}

TEST_CASE("a table has the same cells in Markdown, HTML and CSV, whatever they hold", "[fast]") {
  const Table table{{"id", {"a.b", TableColumn::Kind::number}}, {{"x|<y>", 1.23456789}, {"p,\"q\"", Json()}}};
  CHECK(table.markdown() == "| id | a.b |\n|---|---:|\n| x\\|&lt;y> | 1.2346 |\n| p,\"q\" | – |\n");
  CHECK_THAT(table.html(), Contains("<th class=\"text\">id</th><th>a.<wbr>b</th></tr>\n"
                                    "<tr><td class=\"text\">x|&lt;y&gt;</td><td>1.2346</td></tr>\n"));
  CHECK(table.csv() == "id,a.b\nx|<y>,1.23456789\n\"p,\"\"q\"\"\",\n");
  const Table large{{{"a", TableColumn::Kind::number}},
                    {{216410.3}, {9999999}, {1e7}}};  // written out below ten million
  CHECK_THAT(large.markdown(), Contains("| 216410 |\n| 9999999 |\n| 1.0000e+07 |"));
}

TEST_CASE("results of another form are errors with their place", "[fast]") {
  const auto error = [](const std::string& body) {
    Runs runs;
    runs.add("one", "r", body);
    return thrown<DataError>([&] { runs.parts(); });
  };
  for (const auto& [body, what] : std::vector<std::pair<std::string, std::string>>{
           {"\"kind\": 3", "found 3, expected a string"},
           {"\"metrics\": [1]", "found [1], expected an object"},
           {"\"groups\": {\"a\": 1}", "found 1, expected an object"},
           {"\"series\": {\"by_task\": 1}", "found 1, expected a list"},
           {"\"series\": {\"by_task\": [1]}", "found 1, expected an object"},
           {"\"kind\": \"niah\", \"series\": {\"by_length\": [{\"passes\": 1e300}]}",
            "found 1e+300, expected an integer"}}) {
    INFO(body);
    CHECK_THAT(error(body), Contains("evals/step_00000010/r.json:1:") && EndsWith(what));
  }
  TempFolder folder;
  for (const char* text : {"[]", "1", "{", "null"}) {
    CHECK_THAT(thrown<DataError>([&] { read_evaluation(folder.write("e.json", text)); }), Contains("e.json:1:"));
  }
}

TEST_CASE("names of others are text in every form of a report", "[fast]") {
  const Table table{
      {"id", "=title"},
      {{"=1+1", "@x"}, {"+1", "-1.5"}, {"-a", -1.5}, {"a\rb", "<script>alert(1)</script>"}, {"\x1b[31m", ""}}};
  CHECK(table.csv() == "id,'=title\n'=1+1,'@x\n'+1,-1.5\n'-a,-1.5\n\"a\rb\",<script>alert(1)</script>\n\x1b[31m,\n");
  Page page;
  page.heading(1, "<b>");
  page.paragraph("<i>");
  page.table(table);
  for (const std::string& text : {page.markdown(), page.html("<title>")}) {
    CHECK_THAT(text, !Contains("<script>alert") && !Contains("\x1b") && Contains("\\x1b[31m"));
    CHECK_THAT(text, !Contains("<i>") && Contains("&lt;i") && Contains("&lt;b"));
  }
  CHECK(escape_markup("\x01\"\xFF\xC2\x9B") == "\\x01&quot;\\xff\\xc2\\x9b");
}

TEST_CASE("what failed or was skipped is left out", "[fast]") {
  Runs r;
  r.add("one", "acc", R"("kind": "choice", "metrics": {"acc": {"value": 0.25}})");
  r.folder.write("one/evals/step_00000010/gone.json",
                 R"({"name": "gone", "kind": "choice", "status": "skipped", "metrics": {}})");
  CHECK(r.only().table.columns.size() == 2);
}

TEST_CASE("RULER: a row per length with the mean over its tasks, and a curve per run and source", "[fast]") {
  Runs r;
  r.add("one", "ruler", ruler("builtin", 0.75));
  r.add("two", "ruler", ruler("custom", 1.0));
  const ReportPart part = r.only();
  CHECK_THAT(part.table.markdown(), Contains("| one | ruler (builtin) | 4096 | 75 | 50 | 62.5 | 2 |") &&
                                        Contains("| one | ruler (builtin) | 8192 | 25 | – | 25 | 1 |") &&
                                        Contains("| two | ruler (custom) | 4096 | 100 | 50 | 75 | 2 |") &&
                                        Contains("| one | ruler (builtin) | all | 50 | 50 | 50 | 2 |"));
  CHECK_THAT(part.charts.at(0).second, Contains("one ruler (builtin)") && Contains("two ruler (custom)"));
}

TEST_CASE("needles: what each further reading adds is stacked, and one that finds fewer adds nothing", "[fast]") {
  Runs r;
  r.add("one", "niah", R"("kind": "niah", "source": "builtin", "series": {"by_length": [
    {"context_words": 4000, "passes": 1, "exact": 0.25, "digits": 0.5, "candidate": 0.75, "n": 8, "prompt_tokens": 5000},
    {"context_words": 4000, "passes": 2, "exact": 0.75, "digits": 0.8, "candidate": 0.75, "n": 8, "prompt_tokens": 5000},
    {"context_words": 4000, "passes": 3, "exact": 0.5, "digits": 0.8, "candidate": 0.75, "n": 8, "prompt_tokens": 5000},
    {"context_words": 8000, "passes": 1, "exact": 0, "digits": 0, "candidate": 0, "n": 8, "prompt_tokens": 9000}]})");
  const ReportPart part = r.only();
  CHECK_THAT(part.table.markdown(), Contains("| one | niah (builtin) | 4000 | 3 | 0.5 | 0.8 | 0.75 | 5000 | 8 |"));
  const std::string& svg = part.charts.at(0).second;
  CHECK_THAT(svg, Contains("niah (builtin) 4000") && Contains("niah (builtin) 8000") && Contains("more after 2"));
  // 260 pixels are 1: two segments, of 65 and 130; no others.
  CHECK_THAT(svg, Contains("height=\"65\" fill=\"" + std::string(chart_colour(0))) &&
                      Contains("height=\"130\" fill=\"" + std::string(chart_colour(1))));
  CHECK_THAT(svg, !Contains("y=\"300\""));
}

TEST_CASE("standard errors stand beside values, and intervals beside shares of none or all", "[fast]") {
  Runs r;
  r.add("one", "acc",
        R"("kind": "choice", "metrics": {"acc": {"value": 0.5, "stderr": 0.05, "low": 0.4, "high": 0.6, "n": 100},
    "truncated": {"value": 3, "n": 100}})");
  r.add("two", "acc",
        R"("kind": "choice", "metrics": {"acc": {"value": 0, "stderr": 0, "low": 0, "high": 0.06, "n": 60}})");
  const ReportPart part = r.only();
  CHECK_THAT(part.table.markdown(), Contains("| one | 50.0 ± 5.0 | 3 |") && Contains("| two | 0 [0, 6] | – |"));
  CHECK_THAT(part.files.at(0).second.csv(),
             Contains("run,acc acc,acc acc stderr,acc acc low,acc acc high,acc truncated,files\n") &&
                 Contains("one,0.5,0.05,0.4,0.6,3.0,"));
  Json row = Json::object({{"id", "one"},
                           {"eval.acc.acc", 0.5},
                           {"eval.acc.acc.stderr", 0.05},
                           {"eval.acc.acc.low", 0.4},
                           {"eval.acc.acc.high", 0.6}});
  CHECK_THAT(comparison_table({row}).markdown(), Contains("| one | 0.500 ± 0.050 |"));
  row.set("eval.acc.acc", 0);
  row.set("eval.acc.acc.stderr", 0);
  CHECK_THAT(comparison_table({row}).markdown(), Contains("| one | 0 [0.4, 0.6] |"));
  CHECK_THAT(results_table({row}).csv(),
             Contains("id,eval.acc.acc,eval.acc.acc.stderr,eval.acc.acc.low,eval.acc.acc.high"));
}

TEST_CASE("runs are compared with the first one on the same examples", "[fast]") {
  Runs r;
  const auto add = [&](const std::string& run, const std::vector<double>& acc) {
    r.add(run, "acc",
          R"("kind": "choice", "inputs": "i", "items": "acc.items.jsonl", "metrics": {"acc": {"value": 0.5}})");
    r.folder.write(run + "/evals/step_00000010/acc.items.jsonl", item_lines({{"acc", "", {}, acc, {}}}));
  };
  add("one", {1, 0, 1, 0});
  add("two", {1, 1, 1, 0});
  add("three", {1, 1, 1, 1});
  const std::vector<ReportPart> parts = r.parts();
  REQUIRE(parts.size() == 2);
  CHECK(parts[1].title == "Differences on the same examples");
  CHECK_THAT(parts[1].table.markdown(), Contains("| acc | acc | two | one | 0.25 ± 0.25 | 0.39 | 4 |") &&
                                            Contains("| acc | acc | three | one | 0.50 ± 0.29 | 0.36 | 4 |"));
  CHECK_THAT(parts[1].numbers.csv(), Contains("evaluation,metric,run,minus,difference,stderr,p,p_holm,examples\n"
                                              "acc,acc,two,one,0.25,0.25,0.39"));
}

TEST_CASE("needles by depth: a map for each result, after the last number of readings", "[fast]") {
  Runs r;
  r.add("one", "niah", R"("kind": "niah", "series": {"by_depth": [
    {"context_words": 4000, "depth": 0.25, "passes": 1, "exact": 0.25, "digits": 0.5, "candidate": 0.75, "n": 8},
    {"context_words": 4000, "depth": 0.25, "passes": 2, "exact": 0.5, "digits": 0.8, "candidate": 0.75, "n": 8},
    {"context_words": 4000, "depth": 0.75, "passes": 2, "exact": 0.75, "digits": 0.8, "candidate": 0.75, "n": 8},
    {"context_words": 8000, "depth": 0.75, "passes": 2, "exact": 1, "digits": 1, "candidate": 1, "n": 8}]})");
  const ReportPart part = r.only();
  CHECK_THAT(part.table.markdown(), Contains("| one | niah | 4000 | 1 | 0.25 | 0.25 | 0.5 | 0.75 | 8 |"));
  REQUIRE(part.charts.size() == 1);
  const std::string& svg = part.charts[0].second;
  CHECK_THAT(svg,
             Contains("Needles found: one niah") && Contains(">25 %<") && Contains(">75 %<") && Contains(">8000<"));
  CHECK_THAT(svg, Contains(">0.5<") && Contains(">0.75<") && Contains(">1<") && !Contains(">0.25<"));
}

TEST_CASE("perplexity by position has a logarithmic axis, and gain a drawing of its own", "[fast]") {
  Runs r;
  r.add(
      "one", "far",
      R"("kind": "position_ppl", "series": {"by_position": [{"from": 0, "to": 64, "tokens": 64, "nll": 3.0, "ppl": 20.1, "gain": 0},
    {"from": 64, "to": 91, "tokens": 27, "nll": 2.0, "ppl": 7.4, "gain": 0.5}, {"from": 91, "to": 128, "tokens": 0}]})");
  const ReportPart part = r.only();
  CHECK(part.table.titles() == std::vector<std::string>{"run", "to 64", "to 91", "to 128", "files"});
  CHECK_THAT(part.table.markdown(), Contains("| one | 20.1 | 7.4 | – |"));
  REQUIRE(part.charts.size() == 2);
  CHECK_THAT(part.charts[0].second, Contains("position, end of the bin [tokens], log scale") && Contains("perplexity"));
  CHECK(part.charts[1].first == "gain_far.svg");
}

TEST_CASE("streams of several runs are compared by the cumulative loss since the document's start", "[fast]") {
  Runs r;
  const std::string head =
      R"("kind": "stream_ppl", "series": {"curve": [{"document": 0, "from": 0, "to": 128, "nll": )";
  r.add(
      "one", "books",
      head +
          R"(3.0}, {"document": 0, "from": 128, "to": 192, "nll": 2.0}, {"document": 1, "from": 0, "to": 128, "nll": 1.0}]})");
  CHECK(r.parts().empty());  // nothing to compare with
  r.add(
      "two", "books",
      head +
          R"(2.0}, {"document": 0, "from": 128, "to": 192, "nll": 3.5}, {"document": 1, "from": 0, "to": 128, "nll": 1.5}]})");
  const ReportPart part = r.only();
  // At 128: ((2 - 3) + (1.5 - 1)) / 2; at 192, of the one document that is as long: (2 * 128 + 3.5 * 64) / 192 - (3 *
  // 128 + 2 * 64) / 192.
  CHECK(part.table.titles() == std::vector<std::string>{"run", "128", "192", "files"});
  REQUIRE(part.table.rows.size() == 2);
  CHECK(part.table.rows[0][1].as_double() == 0);
  CHECK(part.table.rows[1][1].as_double() == Approx(-0.25));
  CHECK(part.table.rows[1][2].as_double() == Approx(2.5 - 512.0 / 192));
}

TEST_CASE("continual learning: a line per domain, stages shaded by what was read", "[fast]") {
  Runs r;
  r.add("one", "domains", R"("kind": "adapt", "series": {"adaptation": [
    {"stage": 0, "adapted": null, "domain": "law", "nll": 3, "delta": 0, "tokens": 8}, {"stage": 0, "adapted": null, "domain": "maths", "nll": 2, "delta": 0, "tokens": 8},
    {"stage": 1, "adapted": "law", "domain": "law", "nll": 2.5, "delta": -0.5, "tokens": 8}, {"stage": 1, "adapted": "law", "domain": "maths", "nll": 2.25, "delta": 0.25, "tokens": 8}]})");
  const ReportPart part = r.only();
  CHECK_THAT(part.table.markdown(),
             Contains("| one | 0 | – | 3 | 0 | 2 | 0 |") && Contains("| one | 1 | law | 2.5 | -0.5 | 2.25 | 0.25 |"));
  const std::string& svg = part.charts.at(0).second;
  // Between stages 0 and 1, from the frame's left to its right and from its foot to its top.
  CHECK_THAT(svg,
             Contains("<polygon fill=\"" + std::string(chart_colour(0)) +
                      "\" fill-opacity=\"0.15\" points=\"78.00,324.00 544.00,324.00 544.00,40.00 78.00,40.00 \"/>"));
  CHECK_THAT(svg, Contains("law") && Contains("maths"));
}

TEST_CASE("memories: gates as shades, cumulative weights with bands, curves by layer", "[fast]") {
  Runs r;
  r.add(
      "one", "probe",
      R"("kind": "memory_stats", "metrics": {"sdm.unique_read": {"value": 0.5, "n": 2}, "sdm.effective_read_q10": {"value": 0.125, "n": 2}},
    "groups": {"blocks.0.mixer": {"unique_read": {"value": 0.25, "n": 8}}, "blocks.2.mixer": {"unique_read": {"value": 0.75, "n": 8}}},
    "series": {"gate_histogram": [{"layer": "blocks.1.memory", "from": 0, "to": 0.1, "share": 0.75}, {"layer": "blocks.1.memory", "from": 0.1, "to": 0.2, "share": 0.25}],
      "cumulative": [{"side": "read", "slots": 1, "mean": 0.5, "median": 0.5, "q10": 0.4, "q90": 0.6}, {"side": "read", "slots": 2, "mean": 1, "median": 1, "q10": 1, "q90": 1}],
      "state_norm": [{"layer": "blocks.0.mixer", "tokens": 16, "norm": 2, "largest": 3}, {"layer": "blocks.2.mixer", "tokens": 16, "norm": 4, "largest": 5}]})");
  const ReportPart part = r.only();
  CHECK_THAT(part.table.markdown(), Contains("| sdm.unique_read | 0.5 |"));
  std::map<std::string, std::string> charts(part.charts.begin(), part.charts.end());
  CHECK_THAT(charts.at("gates_one_probe.svg"), Contains("blocks.1.memory") && Contains(">0.75</text>"));
  CHECK_THAT(charts.at("cumulative_read.svg"), Contains("<polygon") && Contains("stroke-dasharray"));
  CHECK_THAT(part.table.markdown(), !Contains("_q10"));
  CHECK(charts.count("cumulative_write.svg") == 0);
  CHECK_THAT(charts.at("memory_state_norm.svg"), Contains("blocks.0.mixer") && Contains("blocks.2.mixer"));
  std::map<std::string, Table> files(part.files.begin(), part.files.end());
  CHECK_THAT(files.at("memory_stats.csv").csv(), Contains("sdm.effective_read_q10,0.125,"));
  CHECK_THAT(files.at("memory_layers.csv").csv(), Contains("one,probe,blocks.2.mixer,0.75,one/evals/"));
  CHECK_THAT(files.at("memory_state_norm.csv").csv(),
             Contains("run,evaluation,layer,tokens,norm,largest,files\none,probe,blocks.0.mixer,16,2,3,"));
}

TEST_CASE("a heat map shades from nothing to the largest value", "[fast]") {
  const std::string svg = svg_heat_map({"T <1>", "x", {"a", "b"}, {"0", "1"}, {{0, 2}, {1, NAN}}});
  CHECK_THAT(svg, Contains("T &lt;1&gt;") && Contains("#ffffff") && Contains("#10468c"));
  const std::regex cell("<rect x=");
  CHECK(std::distance(std::sregex_iterator(svg.begin(), svg.end(), cell), std::sregex_iterator()) == 3);
}

TEST_CASE("recall stands over bytes of state, seeds of a row as one point with its interval", "[fast]") {
  Runs r;
  std::vector<Json> results;
  const auto add = [&](const std::string& run, const std::string& setting, int seed, double share, int bytes) {
    r.add(run, "recall",
          R"("kind": "icr", "series": {"by_setting": [{"setting": "length 64", "length": 64, "accuracy": )" +
              std::to_string(share) + R"(, "state_bytes": )" + std::to_string(bytes) + "}]}");
    results.push_back(Json::object({{"id", run}, {"setting", setting}, {"seeds", std::to_string(seed)}}));
  };
  add("full_seed=1", "a", 1, 0.75, 16384);
  add("full_seed=2", "a", 2, 0.85, 16384);
  add("gdn_seed=1", "b", 1, 0.25, 4096);
  const std::vector<ReportPart> parts = report_recall(load_evaluations(r.runs), results);
  REQUIRE(parts.size() == 1);
  // Two seeds: 12.706 standard deviations (0.0707) / sqrt(2).
  CHECK_THAT(parts[0].table.markdown(), Contains("| full | recall | length 64 | 2 | 0.80 ± 0.64 | 16384 |") &&
                                            Contains("| gdn_seed=1 | recall | length 64 | 1 | 0.25 | 4096 |"));
  CHECK_THAT(parts[0].numbers.csv(), Contains("row,evaluation,setting,seeds,accuracy,low,high,state_bytes\n") &&
                                         Contains("gdn_seed=1,recall,length 64,1,0.25,,,4096"));
  REQUIRE(parts[0].charts.size() == 1);
  CHECK(parts[0].charts[0].first == "recall_recall_length_64.svg");
  const std::string& svg = parts[0].charts[0].second;
  CHECK_THAT(svg, Contains("data-name=\"full\" data-v=\"16384 0.8 0.635") &&
                      Contains("data-name=\"gdn_seed=1\" data-v=\"4096 0.25\"") &&
                      Contains("full: 0.8 ± 0.635, 16.0 KiB") && Contains(">4.0 KiB</text>"));
  CHECK(report_recall(load_evaluations({}), {}).empty());
}

TEST_CASE("cost over length: the best of a run, the mean of a row with its interval", "[fast]") {
  Runs r;
  std::vector<Json> results;
  const auto add = [&](const std::string& run, const std::string& name, int bytes, int slow, int fast) {
    r.add(
        run, name,
        R"("kind": "efficiency", "series": {"state_bytes": [{"tokens": 1024, "bytes": 64}, {"tokens": 4096, "bytes": )" +
            std::to_string(bytes) + R"(}], "decoding": [
              {"position": 1024, "rows": 2, "prefill_tokens_per_s": )" +
            std::to_string(slow) + R"(}, {"position": 2048, "rows": 2, "prefill_tokens_per_s": )" +
            std::to_string(fast) + "}]}");
  };
  for (const int seed : {1, 2}) {
    const std::string run = "full_seed=" + std::to_string(seed);
    add(run, "first", 256, 1024, 1024);
    add(run, "second", 256, seed == 1 ? 2048 : 1024, 512);  // the faster one counts
    results.push_back(Json::object({{"id", run}, {"setting", "a"}, {"seeds", std::to_string(seed)}}));
  }
  add("gdn", "first", 64, 2048, 2048);
  results.push_back(Json::object({{"id", "gdn"}, {"setting", "b"}, {"seeds", "1"}}));
  const std::vector<ReportPart> parts = report_cost(load_evaluations(r.runs), results);
  REQUIRE(parts.size() == 1);
  CHECK(parts[0].table.csv() ==
        "row,tokens,seeds,state [bytes],prefill [s]\n"
        "full,1024,2,64.0,1.5\n"
        "full,2048,2,,4.0\n"
        "full,4096,2,256.0,\n"
        "gdn,1024,1,64.0,1.0\n"
        "gdn,2048,1,,2.0\n"
        "gdn,4096,1,64.0,\n");
  REQUIRE(parts[0].charts.size() == 2);
  CHECK(parts[0].charts[0].first == "cost_state.svg");
  CHECK_THAT(parts[0].charts[0].second, Contains(R"(data-name="full" data-v="1024 64;4096 256")"));
  CHECK(parts[0].charts[1].first == "cost_prefill.svg");
  CHECK_THAT(parts[0].charts[1].second, Contains(R"(data-name="full" data-v="1024 1.5;2048 4")"));
  CHECK(report_cost(load_evaluations({}), {}).empty());
}

TEST_CASE("selection: a line for each row and group of positions", "[fast]") {
  Runs r;
  std::vector<Json> results;
  for (const int seed : {1, 2}) {
    const std::string run = "half_seed=" + std::to_string(seed);
    r.add(run, "needles",
          R"("kind": "selection", "metrics": {"score.needle": {"value": )" + std::to_string(seed) +
              R"(, "n": 4}, "score.repeated": {"value": 0.5, "n": 4}, "kept.needle": {"value": 1, "n": 4}})");
    results.push_back(Json::object({{"id", run}, {"setting", "a"}, {"seeds", std::to_string(seed)}}));
  }
  const std::vector<ReportPart> parts = report_selection(load_evaluations(r.runs), results);
  REQUIRE(parts.size() == 1);
  const std::string csv = parts[0].table.csv();
  CHECK_THAT(csv, Contains("row,evaluation,statistic,positions,seeds,mean,low,high\n") &&
                      Contains("half,needles,score,needle,2,1.5,-4.853") &&
                      Contains("half,needles,score,repeated,2,0.5,0.5,0.5\n") &&
                      Contains("half,needles,kept,needle,2,1.0,1.0,1.0\n"));
  REQUIRE(parts[0].charts.size() == 2);
  CHECK(parts[0].charts[0].first == "selection_score_needles.svg");
  CHECK_THAT(parts[0].charts[0].second, Contains("half, needle: 1.5 ± 6.35"));
  CHECK(report_selection(load_evaluations({}), {}).empty());
}

TEST_CASE("recall stands over the size of what is asked, a curve with its band for each row", "[fast]") {
  Runs r;
  std::vector<Json> results;
  const auto add = [&](const std::string& run, const std::string& model, int seed) {
    results.push_back(Json::object({{"id", run}, {"setting", model}, {"seeds", std::to_string(seed)}}));
  };
  const auto point = [](const char* setting, int length, double share) {
    return fmt::format(R"({{"setting": "{}", "length": {}, "accuracy": {}, "state_bytes": 64}})", setting, length,
                       share);
  };
  const auto icr = [](const std::string& points) {
    return R"("kind": "icr", "series": {"by_setting": [)" + points + "]}";
  };
  for (const int seed : {1, 2}) {
    const std::string run = fmt::format("full_seed={}", seed);
    r.add(run, "recall-64", icr(point("length 64", 64, seed == 1 ? 0.9 : 1.0)));
    r.add(run, "recall-128", icr(point("length 128", 128, 0.5)));
    add(run, "a", seed);
  }
  r.add("gdn", "recall-64", icr(point("length 64", 64, 0.25)));  // a single size is no curve
  r.add("gdn", "functions",
        R"("kind": "icl", "series": {"by_setting": [)" + point("1 functions", 96, 1) + "," +
            point("16 functions", 96, 0.5) + "]}");
  // The size is a whole number of the name: not the 1 of 16, nor that of 12.
  for (const int functions : {1, 12}) {
    r.add("gdn", fmt::format("icl16-{}", functions),
          fmt::format(R"("kind": "icl", "series": {{"by_setting": [{}]}})",
                      point(fmt::format("{} functions", functions).c_str(), 96, 1)));
  }
  // Two settings of one length: which one would the curve show?
  r.add("gdn", "pairs",
        icr(point("length 64, 4 pairs", 64, 1) + "," + point("length 64, 8 pairs", 64, 0.5) + "," +
            point("length 128, 8 pairs", 128, 0.5)));
  add("gdn", "b", 1);
  const std::vector<ReportPart> parts = report_recall(load_evaluations(r.runs), results);
  REQUIRE(parts.size() == 1);
  const std::map<std::string, std::string> charts(parts[0].charts.begin(), parts[0].charts.end());
  REQUIRE(charts.count("recall_over_recall-N.svg") == 1);
  const std::string& lengths = charts.at("recall_over_recall-N.svg");
  CHECK_THAT(lengths, Contains("data-name=\"full\" data-v=\"64 0.95;128 0.5\"") && !Contains("data-name=\"gdn\"") &&
                          Contains("data-v=\"64 0.3146") &&  // 0.95 - 12.706 * 0.0707 / sqrt(2)
                          Contains(" 1;128 0.5 0.5\"") && Contains("tokens of a row"));
  CHECK_THAT(charts.at("recall_over_functions.svg"),
             Contains("data-name=\"gdn\" data-v=\"1 1;16 0.5\"") && Contains("functions of a row"));
  CHECK(charts.count("recall_over_icl16-N.svg") == 1);
  CHECK(charts.count("recall_over_pairs.svg") == 0);
}

TEST_CASE("names of points over bytes stand beside each other, not over each other", "[fast]") {
  ByteChart chart{"T", "state", "share", {}};
  for (int k = 0; k < 6; ++k) { chart.points.push_back({"row-" + std::to_string(k), 4096.0, 1, 0.2}); }
  const std::string svg = svg_bytes(chart);
  std::set<std::string> places;
  const std::regex name("<text x=\"([0-9.]+)\" y=\"([0-9.]+)\" font-size=\"12\" stroke=");
  for (auto it = std::sregex_iterator(svg.begin(), svg.end(), name); it != std::sregex_iterator(); ++it) {
    places.insert((*it)[1].str() + " " + (*it)[2].str());
  }
  CHECK(places.size() == 6);
}
