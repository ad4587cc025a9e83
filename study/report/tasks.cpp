// Sections of a report: perplexity by position, streams, short contexts, needles, RULER.
#include <fmt/core.h>

#include <cmath>

#include "core/mean.h"
#include "study/report/chart_blocks.h"
#include "study/report/parts.h"
#include "study/report/run_results.h"

namespace hebb {
namespace {

std::vector<ReportPart> positions(const Results& all) {
  std::vector<ReportPart> parts;
  for (const Results& results : by_label(of_kind(all, {"position_ppl"}))) {
    const std::string label = results[0].label;
    Pivot pivot({"run"});
    for (const Evaluated& e : results) {
      for (const Json& bin : e.series("by_position")) {
        pivot.set({e.run}, "to " + member_text(bin, "to"), result_number(bin, "ppl"), e);
      }
    }
    ReportPart part{"Perplexity by position: " + label, "", pivot.numbers(), "position_" + file_name(label) + ".csv",
                    true};
    add_series_chart(
        part, results,
        {"by_position", "to", "ppl", "", {part.title, "position, end of the bin [tokens]", "perplexity", true}},
        "position_" + file_name(label));
    const bool has_gain = std::any_of(results.begin(), results.end(), [](const Evaluated& e) {
      const auto bins = e.series("by_position");
      return !bins.empty() && bins[0].find("gain") != nullptr;
    });
    if (has_gain) {
      add_series_chart(part, results,
                       {"by_position",
                        "to",
                        "gain",
                        "",
                        {"Gain of context: " + label, "position, end of the bin [tokens]",
                         "loss with restarts - loss [nats]", true}},
                       "gain_" + file_name(label));
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

/// Mean loss from the start of document d to the end of each point, by that end.
std::map<std::pair<int64_t, int64_t>, double> cumulative_losses(const Evaluated& e) {
  std::map<std::pair<int64_t, int64_t>, double> means;  // of (document, end)
  std::map<int64_t, double> sums;
  for (const Json& p : e.series("curve")) {
    const auto document = integer_of(p, "document");
    const double from = result_number(p, "from"), to = result_number(p, "to");
    sums[document] += result_number(p, "nll") * (to - from);
    means[{document, integer_of(p, "to")}] = sums[document] / to;
  }
  return means;
}

/// Streams of several runs: cumulative loss since the document's start against the first run
/// (docs/evaluations/perplexity.md), mean over documents.
std::vector<ReportPart> streams(const Results& all) {
  std::vector<ReportPart> parts;
  for (const Results& results : by_label(of_kind(all, {"stream_ppl"}))) {
    if (results.size() < 2) { continue; }
    const auto first = cumulative_losses(results[0]);
    Pivot pivot({"run"});
    std::vector<Curve> curves;
    for (const Evaluated& e : results) {
      std::map<int64_t, Mean> differences;  // by position
      for (const auto& [at, loss] : cumulative_losses(e)) {
        const auto other = first.find(at);
        if (other != first.end()) { differences[at.second].add(loss - other->second); }
      }
      Curve c{e.run, {}, {}};
      for (const auto& [to, mean] : differences) {
        c.add(static_cast<double>(to), mean.value());
        pivot.set({e.run}, std::to_string(to), mean.value(), e);
      }
      curves.push_back(std::move(c));
    }
    const std::string label = results[0].label, title = "Streams: " + label;
    ReportPart part{title, "Cumulative loss since the document's start, difference to " + results[0].run + " [nats].",
                    pivot.numbers(), "stream_" + file_name(label) + ".csv", true};
    part.charts.emplace_back(
        "stream_" + file_name(label) + ".svg",
        svg_chart(curves, {title, "position [tokens]", "cumulative loss - that of " + results[0].run}));
    parts.push_back(std::move(part));
  }
  return parts;
}

/// What papers print of a kind; all of the others.
bool is_printed(const std::string& kind, const std::string& metric) {
  static const std::map<std::string, std::set<std::string>> printed = {{"choice", {"acc", "acc_norm"}},
                                                                       {"partial", {"acc"}},
                                                                       {"cloze", {"acc", "ppl"}},
                                                                       {"rolling", {"word_ppl"}},
                                                                       {"answer_ppl", {"ppl"}}};
  const auto it = printed.find(kind);
  const bool is_loss = metric == "truncated" || metric == "merged";  // of records: what others print does not say
  return is_loss || (it == printed.end() ? metric != "examples" : it->second.count(metric) > 0);
}

/// A row per run: perplexities, and scores in percent.
std::vector<ReportPart> short_context(const Results& all) {
  Pivot pivot({"run"}), printed({"run"});
  for (const Evaluated& e : of_kind(all, {"choice", "partial", "cloze", "rolling", "generate", "answer_ppl"})) {
    const Json& metrics = e.object("metrics");
    for (const auto& [name, metric] : metrics.members()) {
      const double value = value_of(metrics, name);
      const Precision precision = precision_of(metrics, name);
      pivot.set({e.run}, e.label + " " + name, value, e, precision);
      const bool is_perplexity = name.find("ppl") != std::string::npos,
                 is_count = name == "truncated" || name == "merged";
      if (is_printed(e.kind, name)) {
        printed.set({e.run}, e.label + " " + name, value, e, precision, is_perplexity || is_count ? 1 : 100);
      }
    }
  }
  if (pivot.rows().empty()) { return {}; }
  ReportPart part{
      "Short context",
      "Perplexities (ppl), and scores in percent, ± standard errors; [95 % interval] of a share of none or all. All "
      "metrics, as fractions: short_context.csv.",
      printed.table()};
  part.files.emplace_back("short_context.csv", pivot.numbers());
  return {part};
}

/// Exact match after n readings, one bar per haystack: what each further reading adds to the best so far.
std::vector<ReportPart> needles(const Results& all) {
  const Results results = of_kind(all, {"niah"});
  Pivot pivot({"run", "evaluation", {"words", TableColumn::Kind::number}, {"readings", TableColumn::Kind::number}});
  std::set<int64_t> readings;
  std::vector<std::string> bars;
  std::map<std::string, std::map<int64_t, double>> exact;  // by bar and readings
  for (const Evaluated& e : results) {
    for (const Json& p : e.series("by_length")) {
      const std::string words = member_text(p, "context_words"), n = member_text(p, "passes");
      for (const char* name : {"exact", "digits", "candidate", "prompt_tokens", "n"}) {
        pivot.set({e.run, e.label, words.empty() ? "–" : words, n}, name, result_number(p, name), e,
                  point_precision(p, name));
      }
      const std::string bar =
          (has_several_runs(results) ? e.run + " " : "") + e.label + (words.empty() ? "" : " " + words);
      const auto count = integer_of(p, "passes");
      add_once(bars, bar);
      exact[bar][count] = result_number(p, "exact");
      readings.insert(count);
    }
  }
  if (bars.empty()) { return {}; }
  StackedBars chart{.title = "Needles found, by readings of the haystack",
                    .y_label = "exact match",
                    .bars = bars,
                    .segments = {},
                    .values = {}};
  for (const int64_t n : readings) {
    chart.segments.push_back(n == *readings.begin() ? fmt::format("after {:d}", n) : fmt::format("more after {:d}", n));
  }
  for (const std::string& bar : bars) {
    double best = 0;
    chart.values.emplace_back();
    for (const int64_t n : readings) {
      const double found = exact[bar].count(n) > 0 ? exact[bar][n] : NAN;
      chart.values.back().push_back(std::max(0.0, found - best));
      best = std::max(best, std::isfinite(found) ? found : 0.0);
    }
  }
  ReportPart part{"Needles in a haystack",
                  "Fractions. A bar's parts are what each further reading adds to the best before it.", pivot.table(),
                  "needles.csv"};
  part.numbers = pivot.numbers();
  part.charts.emplace_back("needles.svg", svg_stacked_bars(chart));
  return {part};
}

/// Tasks beside each other with their mean, a row per run, source and length and one for all lengths, and lines of the
/// means.
std::vector<ReportPart> ruler(const Results& all) {
  Pivot pivot({"run", "evaluation", {"length", TableColumn::Kind::number}});
  std::vector<Curve> curves;
  for (const Evaluated& e : of_kind(all, {"ruler"})) {
    std::map<int64_t, Mean> by_length;
    std::map<std::string, Mean> by_task;
    for (const Json& p : e.series("by_task")) {
      const double score = 100 * result_number(p, "score");
      pivot.set({e.run, e.label, member_text(p, "length")}, member_text(p, "task"), score / 100, e,
                point_precision(p, "score"), 100);
      by_length[integer_of(p, "length")].add(score);
      by_task[member_text(p, "task")].add(score);
    }
    Curve c{e.run + " " + e.label, {}, {}, by_length.size() > 1 ? Mark::line : Mark::points};
    for (const auto& [length, mean] : by_length) {
      const std::string part = std::to_string(length);
      const Json* group = e.object("groups").find(part);
      pivot.set({e.run, e.label, part}, "mean", mean.value() / 100, e,
                group != nullptr ? precision_of(*group, "average") : Precision(), 100);
      pivot.set({e.run, e.label, part}, "tasks", static_cast<double>(mean.n), e);
      c.add(static_cast<double>(length), mean.value());
    }
    Mean of_tasks;
    for (const auto& [task, mean] : by_task) {
      pivot.set({e.run, e.label, "all"}, task, mean.value() / 100, e, precision_of(e.object("metrics"), task), 100);
      of_tasks.add(mean.value());
    }
    if (c.x.empty()) { continue; }
    pivot.set({e.run, e.label, "all"}, "mean", of_tasks.value() / 100, e, precision_of(e.object("metrics"), "average"),
              100);
    pivot.set({e.run, e.label, "all"}, "tasks", static_cast<double>(of_tasks.n), e);
    curves.push_back(std::move(c));
  }
  if (curves.empty()) { return {}; }
  ReportPart part{"RULER", "Percent. Means: of a row over its tasks; of \"all\", over a task's lengths.", pivot.table(),
                  "ruler.csv"};
  part.numbers = pivot.numbers();
  part.charts.emplace_back("ruler.svg",
                           svg_chart(curves, {"RULER by length", "context [tokens]", "mean score [%]", true}));
  return {part};
}

}  // namespace

std::vector<ReportPart> report_tasks(const Results& all) {
  std::vector<ReportPart> parts;
  for (const auto& section : {positions, streams, short_context, needles, ruler}) {
    for (ReportPart& part : section(all)) { parts.push_back(std::move(part)); }
  }
  return parts;
}

}  // namespace hebb
