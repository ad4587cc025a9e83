// Paired differences of evaluations between runs (docs/verbs/report.md, Differences).
#include <cmath>

#include "core/statistics.h"
#include "eval/comparison.h"
#include "study/report/parts.h"

namespace hebb {

std::vector<ReportPart> report_differences(const Results& all) {
  Table shown{{"evaluation",
               "metric",
               "run",
               "minus",
               {"difference", TableColumn::Kind::number},
               {"p", TableColumn::Kind::number},
               {"examples", TableColumn::Kind::number}},
              {}},
      numbers{{"evaluation", "metric", "run", "minus"}, {}};
  add_number_columns(numbers, {"difference", "stderr", "p", "p_holm", "examples"});
  std::vector<double> ps;
  std::vector<size_t> rows;  // that have a p
  for (const Results& results : by_label(all)) {
    const Evaluated& first = results[0];
    for (size_t i = 1; i < results.size(); ++i) {
      const Evaluated& e = results[i];
      for (const PairedDifference& d : result_differences(first.json, first.folder, e.json, e.folder)) {
        const std::string text = with_error(d.value, {d.error.value_or(NAN), NAN, NAN});
        const auto n = Json(d.n);
        if (d.p) {
          ps.push_back(*d.p);
          rows.push_back(shown.rows.size());
        }
        shown.rows.push_back(
            {e.label, d.metric, e.run, first.run, text.empty() ? Json(d.value) : Json(text), Json(), n});
        numbers.rows.push_back({e.label, d.metric, e.run, first.run, d.value, d.error ? Json(*d.error) : Json(),
                                d.p ? Json(*d.p) : Json(), Json(), n});
      }
    }
  }
  if (shown.rows.empty()) { return {}; }
  const std::vector<double> corrected = holm(ps);
  for (size_t k = 0; k < ps.size(); ++k) {
    shown.rows[rows[k]][5] = p_text(corrected[k]);
    numbers.rows[rows[k]][7] = corrected[k];
  }
  constexpr size_t kMost = 60;
  ReportPart part{
      "Differences on the same examples",
      "Mean difference to the first run ± its standard error; p: two-sided, Student's paired t test over examples, "
      "corrected by Holm's method over this table.",
      std::move(shown), "differences_of_evaluations.csv", numbers.rows.size() > kMost};
  part.numbers = std::move(numbers);
  return {part};
}

}  // namespace hebb
