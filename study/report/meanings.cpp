#include "study/report/meanings.h"

#include <algorithm>

#include "study/report/group_by_seed.h"

namespace hebb {
namespace {

constexpr const char *kReport = "docs/verbs/report.md", *kPlan = "docs/verbs/plan.md";

struct Meaning {
  const char *key, *unit, *meaning, *page;  // a key that ends in a dot begins others
};
constexpr Meaning kMeanings[] = {
    {"loss.final", "nats per token", "mean of the training losses logged in the last 5 % of the steps", kReport},
    {"val.", "nats per token", "cross-entropy of the last validation on NAME", "docs/data.md"},
    {"ppl.", "", "its perplexity, exp(val.NAME)", "docs/data.md"},
    {"params.total", "parameters", "all trained parameters", kPlan},
    {"params.non_embedding", "parameters", "without embeddings, head and memories", kPlan},
    {"params.memory", "parameters", "of memory layers", kPlan},
    {"flops.total", "FLOP", "3 x forward FLOPs per token x tokens", kPlan},
    {"tokens", "tokens", "read in training", "docs/formats/metrics.md"},
    {"state_bytes.", "bytes", "state of a decoder after so many tokens, for one row", kPlan},
    {"tokens_per_s", "tokens per second", "median of the logged speeds in training", "docs/formats/metrics.md"},
    {"seconds", "s", "of the run's processes over all starts, evaluations included", "docs/verbs/ladder.md"},
};

const Meaning* meaning_of(const std::string& key) {
  const auto* const found = std::find_if(std::begin(kMeanings), std::end(kMeanings), [&](const Meaning& m) {
    const std::string known = m.key;
    return known.ends_with('.') ? key.starts_with(known) : key.substr(0, key.find(" [data ")) == known;
  });
  return found != std::end(kMeanings) ? found : nullptr;
}

/// The metric of "eval.NAME.METRIC", without what tells sources and data apart.
std::string metric_of(const std::string& key) {
  const std::string bare = key.substr(0, std::min(key.find(" ("), key.find(" [data ")));
  return bare.substr(bare.rfind('.') + 1);
}

const char* page_of(const std::string& kind) {
  static const std::map<std::string, const char*> pages = {
      {"stream_ppl", "perplexity"}, {"position_ppl", "perplexity"}, {"choice", "likelihood"},
      {"partial", "likelihood"},    {"cloze", "likelihood"},        {"rolling", "likelihood"},
      {"answer_ppl", "likelihood"}, {"generate", "generation"},     {"niah", "niah"},
      {"ruler", "ruler"},           {"icr", "synthetic-tasks"},     {"icl", "synthetic-tasks"},
      {"mqar", "synthetic-tasks"},  {"adapt", "memories"},          {"memory_stats", "memories"},
      {"selection", "memories"},    {"efficiency", "cost"}};
  const auto at = pages.find(kind);
  return at != pages.end() ? at->second : nullptr;
}

}  // namespace

std::string unit_of(const std::string& key) {
  if (const Meaning* known = meaning_of(key)) { return known->unit; }
  if (!key.starts_with("eval.")) { return ""; }
  static const std::map<std::string, std::string> units = {
      {"nll", "nats per token"}, {"loss", "nats per token"}, {"bits_per_byte", "bits per byte"}};
  const auto at = units.find(metric_of(key));
  return at != units.end() ? at->second : "";
}

Table meanings_of(const std::vector<std::string>& keys, const std::map<std::string, std::string>& kinds) {
  Table table{{"statistic", "unit", "meaning", "page"}, {}};
  const auto add = [&](const std::string& key, const std::string& unit, const std::string& meaning,
                       const std::string& page) {
    const bool is_there =
        std::any_of(table.rows.begin(), table.rows.end(), [&](const auto& row) { return row[0].as_string() == key; });
    if (!is_there) { table.rows.push_back({key, unit.empty() ? Json() : Json(unit), meaning, page}); }
  };
  for (const std::string& key : keys) {
    if (const Meaning* m = meaning_of(key)) {
      const std::string known = m->key;
      const bool is_state = known.starts_with("state");
      add(known.ends_with('.') ? known + (is_state ? "TOKENS" : "NAME") : known, m->unit, m->meaning, m->page);
    }
  }
  for (const auto& [name, kind] : kinds) {
    if (const char* page = page_of(kind)) {
      const std::string begin = "eval." + name + ".";
      const bool has_any =
          std::any_of(keys.begin(), keys.end(), [&](const std::string& key) { return key.starts_with(begin); });
      if (has_any) {
        add(begin + "METRIC", "", "of the evaluation " + name + " (" + kind + "); shares are fractions",
            std::string("docs/evaluations/") + page + ".md");
      }
    }
  }
  return table;
}

}  // namespace hebb
