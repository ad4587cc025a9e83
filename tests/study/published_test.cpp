// Published numbers beside those of a ladder's runs (docs/verbs/report.md).
#include "study/report/published.h"

#include "study/report/parts.h"
#include "tests/study/sweep_fixture.h"

namespace {

const std::string kPublished = R"("published": {"source": "a paper, table 2",
  "columns": [{"name": "parameters [K]", "key": "params.total", "scale": 0.001}, {"name": "loss", "key": "val.held"},
              {"name": "speed"}],
  "rows": {"full": [3.5, 1.25, 7], "gdn": [null, 1.5, 8]}})";

Json result(const std::string& id, double parameters, double loss) {
  return Json::object({{"id", Json(id)}, {"params.total", Json(parameters)}, {"val.held", Json(loss)}});
}

PublishedTable table() {
  const Json json = parse_json("{" + kPublished + "}", "sweep.json");
  return Fields::read<PublishedTable>(json.at("published"), "published");
}

std::string sweep_with(const std::string& published) {
  return R"("runs": [{"id": "full"}, {"id": "gdn"}], "published": )" + published;
}

}  // namespace

TEST_CASE("published numbers stand beside ours in the unit of the paper", "[fast]") {
  const ReportPart part = beside_published(table(), {result("full", 3510, 1.3), result("gdn", 3600, NAN)});
  CHECK(part.table.titles() == std::vector<std::string>{"run", "parameters [K], published", "parameters [K], ours",
                                                        "loss, published", "loss, ours", "speed, published"});
  CHECK_THAT(part.table.markdown(),
             Contains("| full | 3.5 | 3.51 | 1.25 | 1.3 | 7 |") && Contains("| gdn | – | 3.6 | 1.5 | – | 8 |"));
  CHECK_THAT(part.text, Contains("Published: a paper, table 2.") && !Contains("shrunk"));
  CHECK_THAT(beside_published(table(), {}, "3e13 training FLOPs per run").text,
             Contains("shrunk to 3e13 training FLOPs per run: ") && Contains("different units"));
}

TEST_CASE("a row has the mean over the seeds of its run, and no other run's", "[fast]") {
  const std::vector<Json> results{result("full_seed=1", 3500, 1), result("full_seed=2", 3500, 2),
                                  result("full-wide", 9000, 9)};
  CHECK_THAT(beside_published(table(), results).table.markdown(),
             Contains("| full | 3.5 | 3.5000 ± 0.0000 | 1.25 | 1.5 ± 6.4 |"));
  CHECK(results_of_row("full", {result("full", 1, 1), result("full_b", 1, 1)}).size() == 1);
}

TEST_CASE("a published table that does not fit its sweep is refused at its place", "[fast]") {
  const SweepFolder folder;
  CHECK_THAT(problem(folder, sweep_with(R"({"source": "p", "columns": [{"name": "a"}], "rows": {"gnd": [1]}})")),
             Contains("published.rows") && Contains("found \"gnd\"") && Contains("\"full\", \"gdn\""));
  CHECK_THAT(problem(folder, sweep_with(R"({"source": "p", "columns": [{"name": "a"}], "rows": {"gdn": [1, 2]}})")),
             Contains("published.rows.gdn") && Contains("found 2 values") && Contains("1 numbers or nulls"));
  CHECK_THAT(problem(folder, sweep_with(R"({"source": "p", "columns": [{"name": "a"}], "rows": {"gdn": ["x"]}})")),
             Contains("published.rows.gdn") && Contains("a number or null"));
  CHECK_THAT(problem(folder, sweep_with(R"({"columns": [{"name": "a"}], "rows": {}})")), Contains("published.source"));
}
