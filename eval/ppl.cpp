// Streaming perplexity and perplexity by position (docs/evaluations/perplexity.md).
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "eval/eval_data.h"
#include "eval/evaluation.h"

namespace hebb {
namespace {

/// Loss of every predicted token of `tokens` (n - 1 of them).
void log_document(EvalContext& c, int64_t d, const std::vector<int32_t>& ids, const std::vector<double>& losses) {
  c.log_sample(fmt::format("document {:d}", d), ids,
               Json::object({{"tokens", static_cast<int64_t>(losses.size())},
                             {"ll", -std::accumulate(losses.begin(), losses.end(), 0.0)}}));
}

std::vector<double> score_all(EvalContext& c, std::span<const int32_t> tokens, ModelState& state,
                              ScoringModel::Reading reading) {
  return c.model.score(tokens.subspan(0, tokens.size() - 1), tokens.subspan(1), state, reading);
}

class StreamPpl final : public EvalTask {
 public:
  void fields(Fields& f) override {
    f.object("data", data_).required().help("Documents to read.");
    f.field("sequence_length", length_).min(1).unit("tokens").help("Segment length T (default: that of training).");
    f.field("max_tokens", max_tokens_).min(1).unit("tokens").help("Stop after so many predicted tokens.");
    f.field("carry", carry_)
        .one_of({"fast", "all", "none"})
        .help(
            "fast: only fast weights go on; all: caches and states too, within a document; none: nothing, each segment "
            "starts from the checkpoint.");
    f.field("freeze_fast_weights", freeze_).help("Never update fast weights.");
    f.field("layout", layout_).one_of({"exact", "paper"}).help("paper: the official slicing, which leaves tokens out.");
  }

  EvalResult run(EvalContext& c) override {
    const int64_t length = c.length_of(length_, "sequence_length", "a segment length");
    const EvalTokens source = data_.open(c.tokenizer.get());
    const std::vector<int64_t> tokens = predicted(source, length);
    const int64_t vocab = c.model.source().model.vocab_size;
    c.begin("stream_ppl", static_cast<uint64_t>(std::accumulate(tokens.begin(), tokens.end(), int64_t{0})));
    saved_ = c.model.save_fast_weights();
    const auto compute = [&](size_t d) {
      return document(c, static_cast<int64_t>(d), read_document(source, static_cast<int64_t>(d), INT64_MAX, vocab),
                      length, tokens[d]);
    };
    const std::vector<Json> documents =
        c.items({.count = tokens.size(),
                 .compute = compute,
                 .moves_weights = c.model.has_fast_weights() && carry_ != "none" && !freeze_,
                 .units = [&](size_t d) { return static_cast<uint64_t>(tokens[d]); }});
    c.progress.end();
    return result(documents, tokens);
  }

 private:
  /// What is read of a document at once: tokens [from, from + count), of which the first is not predicted.
  struct Segment {
    int64_t from = 0, count = 0;
  };

  /// The segments of n tokens of which at most `most` are predicted.
  std::vector<Segment> segments(int64_t n, int64_t length, int64_t most) const {
    const int64_t stride = layout_ == "paper" ? length + 1 : length;
    std::vector<Segment> segments;
    for (int64_t s = 0, tokens = 0; s + 1 < n && tokens < most; s += stride) {
      // "paper": segment k ends k tokens early (docs/evaluations/perplexity.md, Papers).
      const int64_t lost = layout_ == "paper" ? s / stride : 0;
      const int64_t count = std::min({length + 1 - lost, n - s, most - tokens + 1});
      if (count < 2) { break; }
      segments.push_back({s, count});
      tokens += count - 1;
    }
    return segments;
  }

  /// Predicted tokens of each document that is read.
  std::vector<int64_t> predicted(const EvalTokens& source, int64_t length) const {
    const int64_t total = std::min(max_tokens_.value_or(INT64_MAX), source.tokens() - source.documents());
    std::vector<int64_t> tokens;
    int64_t before = 0;
    for (int64_t d = 0; d < source.documents() && before < total; ++d) {
      int64_t own = 0;
      for (const Segment& s : segments(source.document_tokens(d), length, total - before)) { own += s.count - 1; }
      tokens.push_back(own);
      before += own;
    }
    return tokens;
  }

  /// Sum of the losses and bytes of a document of which so many tokens are predicted; points of its curve.
  Json document(EvalContext& c, int64_t d, const std::vector<int32_t>& ids, int64_t length, int64_t tokens) const {
    std::vector<double> losses;
    int64_t bytes = 0;
    const std::vector<int64_t> bytes_of =
        c.tokenizer != nullptr ? c.tokenizer->document_bytes(ids) : std::vector<int64_t>(ids.size());
    std::unique_ptr<ModelState> state = c.model.new_state();
    const ScoringModel::Reading reading{FastUpdate::streaming, freeze_};
    for (const Segment& s : segments(static_cast<int64_t>(ids.size()), length, tokens)) {
      c.poll();
      if (carry_ != "all" && s.from > 0) { state = c.model.new_state(); }
      if (carry_ == "none") { c.model.restore_fast_weights(saved_); }
      const auto part = std::span(ids).subspan(static_cast<size_t>(s.from), static_cast<size_t>(s.count));
      const std::vector<double> found = score_all(c, part, *state, reading);
      c.model.flush(*state, reading);
      losses.insert(losses.end(), found.begin(), found.end());
      const auto own = std::span(bytes_of).subspan(static_cast<size_t>(s.from), static_cast<size_t>(s.count));
      bytes = std::accumulate(own.begin() + 1, own.end(), bytes);
      c.step(static_cast<uint64_t>(s.count - 1));
    }
    log_document(c, d, ids, losses);
    return Json::object({{"sum", std::accumulate(losses.begin(), losses.end(), 0.0)},
                         {"bytes", bytes},
                         {"curve", d < 10 ? curve_of(d, losses) : Json::array()}});
  }

  static Json curve_of(int64_t d, const std::vector<double>& losses) {
    Json curve = Json::array();
    for (size_t from = 0; from < losses.size(); from += 128) {
      const size_t to = std::min(losses.size(), from + 128);
      double sum = 0;
      for (size_t i = from; i < to; ++i) { sum += losses[i]; }
      curve.push(Json::object({{"document", d},
                               {"from", static_cast<int64_t>(from)},
                               {"to", static_cast<int64_t>(to)},
                               {"nll", sum / static_cast<double>(to - from)}}));
    }
    return curve;
  }

  EvalResult result(const std::vector<Json>& documents, const std::vector<int64_t>& predicted) const {
    const int64_t tokens = std::accumulate(predicted.begin(), predicted.end(), int64_t{0});
    if (tokens == 0) { return EvalResult::failed(data_.path + ": no document with two tokens"); }
    RatioOfSums per_token, per_byte;
    Json curve = Json::array();
    for (size_t d = 0; d < documents.size(); ++d) {
      const double sum = kept_number(documents[d].at("sum"));
      const int64_t bytes = documents[d].at("bytes").as_int();
      if (predicted[d] > 0) {
        per_token.add(sum, static_cast<double>(predicted[d]));
        per_byte.add(sum / std::log(2.0), static_cast<double>(bytes));
      }
      for (const Json& point : documents[d].at("curve").items()) { curve.push(point); }
    }
    EvalResult r;
    r.ratio("nll", "ppl", per_token);
    r.metric("tokens", static_cast<double>(tokens), tokens);
    if (per_byte.count() > 0) { r.ratio("bits_per_byte", "", per_byte); }
    r.series.set("curve", curve);
    return r;
  }

  EvalData data_;
  std::optional<int64_t> length_, max_tokens_;
  std::string carry_ = "fast", layout_ = "exact";
  bool freeze_ = false;
  std::vector<std::vector<char>> saved_;
};

struct Bins {
  std::string kind = "log";
  int64_t first = 64, per_octave = 2, width = 500, period = 256;

  /// Edges 0 = e_0 < e_1 < ... >= length; modulo: one bin per residue.
  std::vector<int64_t> edges(int64_t length) const {
    std::vector<int64_t> e = {0};
    if (kind == "modulo") {
      for (int64_t i = 1; i <= std::min(period, length); ++i) { e.push_back(i); }
      return e;
    }
    for (int64_t j = 0; e.back() < length; ++j) {
      const int64_t next = kind == "linear"
                               ? (j + 1) * width
                               : static_cast<int64_t>(std::floor(
                                     static_cast<double>(first) *
                                         std::pow(2.0, static_cast<double>(j) / static_cast<double>(per_octave)) +
                                     0.5));
      if (next > e.back()) { e.push_back(next); }
    }
    return e;
  }
};

void fields(Fields& f, Bins& b) {
  f.field("kind", b.kind).one_of({"log", "linear", "modulo"}).help("How positions are grouped.");
  const bool all = f.mode() == Fields::Mode::describe;
  if (all || b.kind == "log") {
    f.field("first", b.first).min(1).help("log: the first edge after 0.");
    f.field("per_octave", b.per_octave).min(1).max(1024).help("log: edges per doubling.");
  }
  if (all || b.kind == "linear") { f.field("width", b.width).min(1).help("linear: positions per bin."); }
  if (all || b.kind == "modulo") {
    f.field("period", b.period).min(1).help("modulo: position p counts in bin p mod period.");
  }
}

class PositionPpl final : public EvalTask {
 public:
  void fields(Fields& f) override {
    f.object("data", data_).required().help("Documents to read.");
    f.field("length", length_)
        .required()
        .min(1)
        .unit("tokens")
        .help("Documents of at least so many tokens, cut to length + 1.");
    f.object("bins", bins_).help("Groups of positions.");
    f.field("baseline_context", baseline_)
        .min(1)
        .unit("tokens")
        .help("A second pass whose state restarts every so many tokens; reports the gain.");
    f.field("max_documents", max_documents_).min(1).help("Stop after so many documents.");
    f.field("freeze_fast_weights", freeze_).help("Never update fast weights.");
  }

  std::vector<std::string> left_out(const EvalPremises& premises) override {
    require_length(data_.open(premises.tokenizer.get()));
    return {};
  }

  EvalResult run(EvalContext& c) override {
    const EvalTokens source = data_.open(c.tokenizer.get());
    const int64_t vocab = c.model.source().model.vocab_size;
    require_length(source);  // before the bins: their number grows with the length
    const std::vector<int64_t> edges = bins_.edges(length_);
    const std::vector<int64_t> documents = long_documents(source);
    const auto saved = c.model.save_fast_weights();
    c.begin("position_ppl", documents.size());
    const auto compute = [&](size_t i) {
      const std::vector<int32_t> ids = read_document(source, documents[i], length_ + 1, vocab);
      const std::vector<double> losses = pass(c, ids, static_cast<int64_t>(ids.size()), saved);
      log_document(c, documents[i], ids, losses);
      const std::vector<double> reset = baseline_ ? pass(c, ids, *baseline_, saved) : std::vector<double>();
      return binned(edges, losses, reset);
    };
    std::vector<Bin> bins(edges.size() - 1);
    RatioOfSums nll;
    for (const Json& document : c.items({.count = documents.size(), .compute = compute})) {
      Bin whole;
      for (size_t i = 0; i < bins.size(); ++i) {
        bins[i].add(document.items()[i].items());
        whole.add(document.items()[i].items());
      }
      nll.add(whole.sum, static_cast<double>(whole.count));
    }
    c.progress.end();
    return result(edges, bins, nll);
  }

 private:
  void require_length(const EvalTokens& source) const {
    for (int64_t d = 0; d < source.documents(); ++d) {
      if (source.document_tokens(d) >= length_) { return; }
    }
    throw DataError(data_.path, fmt::format("no document of at least {:d} tokens", length_));
  }

  /// Those that are read.
  std::vector<int64_t> long_documents(const EvalTokens& source) const {
    std::vector<int64_t> documents;
    const int64_t least = std::max<int64_t>(length_, 2), most = max_documents_.value_or(INT64_MAX);
    for (int64_t d = 0; d < source.documents() && static_cast<int64_t>(documents.size()) < most; ++d) {
      if (source.document_tokens(d) >= least) { documents.push_back(d); }
    }
    return documents;
  }

  /// Sums of losses, with and without all of the context, and tokens.
  struct Bin {
    double sum = 0, base = 0;
    int64_t count = 0;
    /// [sum, base, count].
    void add(const std::vector<Json>& values) {
      sum += kept_number(values[0]);
      base += kept_number(values[1]);
      count += values[2].as_int();
    }
  };

  /// Losses of one document; all state, fast weights included, restarts every `context` tokens.
  std::vector<double> pass(EvalContext& c, const std::vector<int32_t>& ids, int64_t context,
                           const std::vector<std::vector<char>>& fast_weights) const {
    std::vector<double> losses;
    const ScoringModel::Reading reading{FastUpdate::streaming, freeze_};
    const int64_t n = static_cast<int64_t>(ids.size()) - 1;
    for (int64_t s = 0; s < n; s += context) {
      c.poll();
      c.model.restore_fast_weights(fast_weights);
      const std::unique_ptr<ModelState> state = c.model.new_state();
      const std::vector<double> part = score_all(
          c, std::span(ids).subspan(static_cast<size_t>(s), static_cast<size_t>(std::min(context, n - s) + 1)), *state,
          reading);
      losses.insert(losses.end(), part.begin(), part.end());
    }
    return losses;
  }

  /// [sum, base, count] of every bin; `reset` may be empty.
  Json binned(const std::vector<int64_t>& edges, const std::vector<double>& losses,
              const std::vector<double>& reset) const {
    std::vector<Bin> bins(edges.size() - 1);
    for (size_t p = 0; p < losses.size(); ++p) {
      const int64_t at = bins_.kind == "modulo" ? static_cast<int64_t>(p) % bins_.period : static_cast<int64_t>(p);
      Bin& bin = bins[static_cast<size_t>(std::upper_bound(edges.begin(), edges.end(), at) - edges.begin()) - 1];
      bin.sum += losses[p];
      bin.base += reset.empty() ? 0.0 : reset[p];
      ++bin.count;
    }
    Json values = Json::array();
    for (const Bin& bin : bins) { values.push(Json::array({bin.sum, bin.base, bin.count})); }
    return values;
  }

  EvalResult result(const std::vector<int64_t>& edges, const std::vector<Bin>& sums, const RatioOfSums& nll) const {
    if (nll.count() == 0) { return EvalResult::failed(data_.path + ": no document with two tokens"); }
    Json bins = Json::array();
    for (size_t i = 0; i < sums.size(); ++i) {
      const Bin& own = sums[i];
      Json bin = Json::object({{"from", edges[i]}, {"to", edges[i + 1]}, {"tokens", own.count}});
      if (own.count > 0) {
        const double n = static_cast<double>(own.count);
        bin.set("nll", own.sum / n);
        bin.set("ppl", std::exp(own.sum / n));
        if (baseline_) { bin.set("gain", (own.base - own.sum) / n); }
      }
      bins.push(bin);
    }
    EvalResult r;
    r.series.set("by_position", bins);
    r.ratio("nll", "ppl", nll);
    r.metric("documents", static_cast<double>(nll.sums.size()), static_cast<int64_t>(nll.sums.size()));
    return r;
  }

  EvalData data_;
  int64_t length_ = 0;
  Bins bins_;
  std::optional<int64_t> baseline_, max_documents_;
  bool freeze_ = false;
};

}  // namespace

std::unique_ptr<EvalTask> make_stream_ppl() { return std::make_unique<StreamPpl>(); }
std::unique_ptr<EvalTask> make_position_ppl() { return std::make_unique<PositionPpl>(); }

}  // namespace hebb
