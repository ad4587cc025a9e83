// Continual learning: fast weights adapt to one domain after the other (docs/evaluations/memories.md).
#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "core/names.h"
#include "eval/eval_data.h"
#include "eval/evaluation.h"

namespace hebb {
namespace {

struct Domain {
  std::string name;
  EvalData data;
};

void fields(Fields& f, Domain& d) {
  f.field("name", d.name).required().help("Name of the domain in the results.");
  f.require(!d.name.empty() && is_printable(d.name), "name", "a name without control characters");
  fields(f, d.data);
}

/// Rows of length + 1 tokens of a domain: [0, adapt) are adapted to, [evaluate, evaluate + count) are scored.
struct DomainRows {
  EvalTokens source;
  int64_t length = 0, adapt = 0, evaluate = 0, count = 0;

  /// Tokens [from, from + n) of row r.
  std::vector<int32_t> read(int64_t r, int64_t n, int64_t vocab) const {
    std::vector<int32_t> tokens(static_cast<size_t>(n));
    source.read(r * (length + 1), n, vocab, tokens.data());
    return tokens;
  }
};

class Adapt final : public EvalTask {
 public:
  void fields(Fields& f) override {
    f.list("domains", domains_).required().not_empty().help("Token files of each domain, in the order of adaptation.");
    f.field("sequence_length", length_).min(1).unit("tokens").help("Inputs of a row (default: that of training).");
    f.field("max_tokens", max_tokens_).min(2).unit("tokens").help("Tokens that are taken from each domain.");
    f.field("micro_batch_size", batch_).min(1).help("Rows that write to the fast weights together.");
    f.field("chunk_size", chunk_).min(1).unit("tokens").help("Tokens of a row per update (default: the layers' own).");
    if (f.reading()) { check_names(f); }
  }

  EvalResult run(EvalContext& c) override {
    const int64_t length = c.length_of(length_, "sequence_length", "a row length");
    std::vector<DomainRows> rows;
    for (const Domain& d : domains_) { rows.push_back(cut(c, d, length)); }
    const bool adapts = c.model.has_fast_weights();
    c.begin("adapt", total_tokens(rows, adapts));
    std::vector<std::vector<double>> nll{evaluate(c, rows)};
    for (const DomainRows& domain : rows) {
      if (adapts) {
        c.items({.count = 1,
                 .compute = [&](size_t) { return adapt(c, domain), Json(); },
                 .moves_weights = true,
                 .units = [&](size_t) { return static_cast<uint64_t>(domain.adapt * domain.length); }});
      }
      nll.push_back(adapts ? evaluate(c, rows) : nll[0]);  // without fast weights nothing has changed
    }
    c.progress.end();
    return result(rows, nll);
  }

 private:
  void check_names(Fields& f) const {
    std::set<std::string> names;
    for (size_t i = 0; i < domains_.size(); ++i) {
      if (!names.insert(domains_[i].name).second) {
        f.fail(fmt::format("domains.{:d}.name", i), "\"" + domains_[i].name + "\" again",
               "a name that no other domain has");
      }
    }
  }

  DomainRows cut(const EvalContext& c, const Domain& d, int64_t length) const {
    DomainRows rows{d.data.open(c.tokenizer.get()), length};
    const int64_t tokens = std::min(max_tokens_.value_or(INT64_MAX), rows.source.tokens()), all = tokens / (length + 1),
                  half = all / 2;
    rows.adapt = half / batch_ * batch_;
    rows.evaluate = half;
    rows.count = (all - half) / batch_ * batch_;
    if (rows.adapt == 0) {
      throw DataError(d.data.path, "too few tokens for domain \"" + d.name + "\"",
                      fmt::format("{:d} rows of {:d} tokens", all, length + 1),
                      fmt::format("at least {:d}, a micro-batch to adapt to and one to evaluate", 2 * batch_));
    }
    return rows;
  }

  static uint64_t total_tokens(const std::vector<DomainRows>& rows, bool adapts) {
    int64_t adapted = 0, evaluated = 0;
    for (const DomainRows& d : rows) {
      adapted += d.adapt * d.length;
      evaluated += d.count * d.length;
    }
    const int64_t stages = adapts ? static_cast<int64_t>(rows.size()) + 1 : 1;
    return static_cast<uint64_t>((adapts ? adapted : 0) + stages * evaluated);
  }

  void adapt(EvalContext& c, const DomainRows& d) {
    const ScoringModel::RowReading reading{.rows = batch_, .fast_chunk = chunk_.value_or(0)};
    for (int64_t r = 0; r < d.adapt; r += batch_) {
      std::vector<int32_t> tokens;
      for (int64_t b = 0; b < batch_; ++b) {
        const std::vector<int32_t> row = d.read(r + b, d.length, c.model.source().model.vocab_size);
        tokens.insert(tokens.end(), row.begin(), row.end());
      }
      c.model.read_rows(tokens, reading);
      c.step(static_cast<uint64_t>(batch_ * d.length));
    }
  }

  /// Mean loss of every domain, fast weights as they are.
  std::vector<double> evaluate(EvalContext& c, const std::vector<DomainRows>& rows) {
    std::vector<double> nll;
    const auto units = [&](size_t i) { return static_cast<uint64_t>(rows[i].count * rows[i].length); };
    const auto compute = [&](size_t i) { return Json(evaluate(c, rows[i])); };
    const bool adapts = c.model.has_fast_weights();
    for (const Json& item :
         c.items({.count = rows.size(), .compute = compute, .is_on_first = adapts, .units = units})) {
      nll.push_back(kept_number(item));
    }
    return nll;
  }

  double evaluate(EvalContext& c, const DomainRows& d) {
    double sum = 0;
    for (int64_t r = d.evaluate; r < d.evaluate + d.count; ++r) {
      const std::vector<int32_t> ids = d.read(r, d.length + 1, c.model.source().model.vocab_size);
      const std::unique_ptr<ModelState> state = c.model.new_state();
      const std::span<const int32_t> all(ids);
      for (const double loss :
           c.model.score(all.first(all.size() - 1), all.subspan(1), *state, {FastUpdate::never, true})) {
        sum += loss;
      }
      c.step(static_cast<uint64_t>(d.length));
    }
    return sum / static_cast<double>(d.count * d.length);
  }

  EvalResult result(const std::vector<DomainRows>& rows, const std::vector<std::vector<double>>& nll) const {
    Json points = Json::array();
    double own = 0;
    int64_t tokens = 0;
    for (size_t stage = 0; stage < nll.size(); ++stage) {
      for (size_t i = 0; i < rows.size(); ++i) {
        points.push(Json::object({{"stage", static_cast<int64_t>(stage)},
                                  {"adapted", stage > 0 ? Json(domains_[stage - 1].name) : Json()},
                                  {"domain", domains_[i].name},
                                  {"nll", nll[stage][i]},
                                  {"delta", nll[stage][i] - nll[0][i]},
                                  {"tokens", rows[i].count * rows[i].length}}));
        own += stage == i + 1 ? nll[stage][i] - nll[0][i] : 0.0;
        tokens += stage == 0 ? rows[i].count * rows[i].length : 0;
      }
    }
    const auto mean = [](const std::vector<double>& v) {
      return std::accumulate(v.begin(), v.end(), 0.0) / static_cast<double>(v.size());
    };
    EvalResult r;
    r.metric("nll_before", mean(nll.front()), tokens);
    r.metric("nll_after", mean(nll.back()), tokens);
    r.metric("delta_own", own / static_cast<double>(rows.size()), tokens);
    r.metric("delta_end", mean(nll.back()) - mean(nll.front()), tokens);
    r.series.set("adaptation", points);
    return r;
  }

  std::vector<Domain> domains_;
  std::optional<int64_t> length_, max_tokens_, chunk_;
  int64_t batch_ = 8;
};

}  // namespace

std::unique_ptr<EvalTask> make_adapt() { return std::make_unique<Adapt>(); }

}  // namespace hebb
