// Streaming perplexity and perplexity by position (docs/evaluations/perplexity.md).
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
  Json sample = Json::object();
  sample.set("tokens", static_cast<int64_t>(losses.size()));
  sample.set("ll", -std::accumulate(losses.begin(), losses.end(), 0.0));
  c.log_sample("document " + std::to_string(d), ids, sample);
}

std::vector<double> score_all(EvalContext& c, std::span<const int32_t> tokens, ModelState& state,
                              ScoringModel::Reading reading) {
  return c.session.score(tokens.subspan(0, tokens.size() - 1), tokens.subspan(1), state, reading);
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
    const int64_t length = length_.value_or(c.sequence_length);
    if (length < 1) {
      throw ConfigError("sequence_length", "nothing",
                        "a segment length, since the configuration has no train.sequence_length");
    }
    const TokenSource source = data_.open(c.tokenizer.get());
    const int64_t vocab = c.session.source().model.vocab_size;
    const int64_t total = std::min(max_tokens_.value_or(INT64_MAX), source.tokens() - source.documents());
    c.progress.begin("stream_ppl", static_cast<uint64_t>(std::max<int64_t>(total, 0)));
    saved_ = c.session.save_fast_weights();
    const bool moves_weights = c.session.has_fast_weights() && carry_ != "none" && !freeze_;
    for (int64_t d = 0; d < source.documents() && tokens_ < total; ++d) {
      c.poll();
      const Json totals =
          c.item([&] { return document(c, read_document(source, d, INT64_MAX, vocab), length, total); }, moves_weights);
      sum_ = kept_number(totals.at("sum"));
      tokens_ = totals.at("tokens").as_int();
      bytes_ = totals.at("bytes").as_int();
      for (const Json& point : totals.at("curve").items()) { curve_.push(point); }
      ++documents_;
      c.progress.update(static_cast<uint64_t>(tokens_));
    }
    c.progress.end();
    return result();
  }

 private:
  /// The totals behind a document.
  Json document(EvalContext& c, const std::vector<int32_t>& ids, int64_t length, int64_t total) {
    const int64_t n = static_cast<int64_t>(ids.size()), stride = layout_ == "paper" ? length + 1 : length;
    std::vector<double> losses;
    std::unique_ptr<ModelState> state = c.session.new_state();
    const ScoringModel::Reading reading{FastUpdate::streaming, freeze_};
    for (int64_t s = 0; s + 1 < n && tokens_ < total; s += stride) {
      c.poll();
      if (carry_ != "all" && s > 0) { state = c.session.new_state(); }
      if (carry_ == "none") { c.session.restore_fast_weights(saved_); }
      // "paper": segment k ends k tokens early (docs/evaluations/perplexity.md, Papers).
      const int64_t lost = layout_ == "paper" ? s / stride : 0;
      const int64_t count = std::min({length + 1 - lost, n - s, total - tokens_ + 1});
      if (count < 2) { break; }
      const std::vector<double> part =
          score_all(c, std::span(ids).subspan(static_cast<size_t>(s), static_cast<size_t>(count)), *state, reading);
      c.session.flush(*state, reading);
      losses.insert(losses.end(), part.begin(), part.end());
      for (const double l : part) { sum_ += l; }
      tokens_ += count - 1;
      if (c.tokenizer != nullptr) {
        for (const int32_t id : std::span(ids).subspan(static_cast<size_t>(s + 1), static_cast<size_t>(count - 1))) {
          bytes_ += c.tokenizer->text_bytes(id);
        }
      }
      c.progress.update(static_cast<uint64_t>(tokens_));
    }
    log_document(c, documents_, ids, losses);
    return Json::object({{"sum", sum_},
                         {"tokens", tokens_},
                         {"bytes", bytes_},
                         {"curve", documents_ < 10 ? curve_of(losses) : Json::array()}});
  }

  Json curve_of(const std::vector<double>& losses) const {
    Json curve = Json::array();
    for (size_t from = 0; from < losses.size(); from += 128) {
      const size_t to = std::min(losses.size(), from + 128);
      double sum = 0;
      for (size_t i = from; i < to; ++i) { sum += losses[i]; }
      Json point = Json::object();
      point.set("document", documents_);
      point.set("from", static_cast<int64_t>(from));
      point.set("to", static_cast<int64_t>(to));
      point.set("nll", sum / static_cast<double>(to - from));
      curve.push(point);
    }
    return curve;
  }

  EvalResult result() const {
    EvalResult r;
    if (tokens_ == 0) {
      r.status = "failed";
      r.reason = data_.path + ": no document with two tokens";
      return r;
    }
    const double nll = sum_ / static_cast<double>(tokens_);
    r.metric("nll", nll, tokens_);
    r.metric("ppl", std::exp(nll), tokens_);
    r.metric("tokens", static_cast<double>(tokens_), tokens_);
    if (bytes_ > 0) { r.metric("bits_per_byte", sum_ / (static_cast<double>(bytes_) * std::log(2.0)), bytes_); }
    r.series.set("curve", curve_);
    return r;
  }

  EvalData data_;
  std::optional<int64_t> length_, max_tokens_;
  std::string carry_ = "fast", layout_ = "exact";
  bool freeze_ = false;
  std::vector<std::vector<char>> saved_;
  double sum_ = 0;
  int64_t tokens_ = 0, bytes_ = 0, documents_ = 0;
  Json curve_ = Json::array();
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

  EvalResult run(EvalContext& c) override {
    const TokenSource source = data_.open(c.tokenizer.get());
    const int64_t vocab = c.session.source().model.vocab_size;
    if (longest(source) < length_) {  // before the bins: their number grows with the length
      EvalResult none;
      none.status = "failed";
      none.reason = data_.path + ": no document of at least " + std::to_string(length_) + " tokens";
      return none;
    }
    const std::vector<int64_t> edges = bins_.edges(length_);
    std::vector<double> sum(edges.size() - 1, 0.0), base(edges.size() - 1, 0.0);
    std::vector<int64_t> count(edges.size() - 1, 0);
    int64_t documents = 0;
    const auto saved = c.session.save_fast_weights();
    c.progress.begin("position_ppl", static_cast<uint64_t>(source.documents()));
    for (int64_t d = 0; d < source.documents() && documents < max_documents_.value_or(INT64_MAX); ++d) {
      c.poll();
      c.progress.update(static_cast<uint64_t>(d));
      if (source.document_start(d + 1) - source.document_start(d) < length_) { continue; }
      const std::vector<int32_t> ids = read_document(source, d, length_ + 1, vocab);
      if (ids.size() < 2) { continue; }
      ++documents;
      const Json totals = c.item([&] {
        const std::vector<double> losses = pass(c, ids, static_cast<int64_t>(ids.size()), saved);
        log_document(c, d, ids, losses);
        add(edges, losses, sum, &count);
        if (baseline_) { add(edges, pass(c, ids, *baseline_, saved), base, nullptr); }
        Json bins = Json::array();
        for (size_t i = 0; i < count.size(); ++i) { bins.push(Json::array({sum[i], base[i], count[i]})); }
        return bins;
      });
      for (size_t i = 0; i < count.size(); ++i) {
        const auto& bin = totals.items()[i].items();
        sum[i] = kept_number(bin[0]);
        base[i] = kept_number(bin[1]);
        count[i] = bin[2].as_int();
      }
    }
    c.progress.update(static_cast<uint64_t>(source.documents()));
    c.progress.end();
    return result(edges, sum, base, count, documents);
  }

 private:
  static int64_t longest(const TokenSource& source) {
    int64_t tokens = 0;
    for (int64_t d = 0; d < source.documents(); ++d) {
      tokens = std::max(tokens, source.document_start(d + 1) - source.document_start(d));
    }
    return tokens;
  }

  /// Losses of one document; all state, fast weights included, restarts every `context` tokens.
  std::vector<double> pass(EvalContext& c, const std::vector<int32_t>& ids, int64_t context,
                           const std::vector<std::vector<char>>& fast_weights) const {
    std::vector<double> losses;
    const ScoringModel::Reading reading{FastUpdate::streaming, freeze_};
    const int64_t n = static_cast<int64_t>(ids.size()) - 1;
    for (int64_t s = 0; s < n; s += context) {
      c.poll();
      c.session.restore_fast_weights(fast_weights);
      const std::unique_ptr<ModelState> state = c.session.new_state();
      const std::vector<double> part = score_all(
          c, std::span(ids).subspan(static_cast<size_t>(s), static_cast<size_t>(std::min(context, n - s) + 1)), *state,
          reading);
      losses.insert(losses.end(), part.begin(), part.end());
    }
    return losses;
  }

  void add(const std::vector<int64_t>& edges, const std::vector<double>& losses, std::vector<double>& sum,
           std::vector<int64_t>* count) const {
    for (size_t p = 0; p < losses.size(); ++p) {
      const int64_t at = bins_.kind == "modulo" ? static_cast<int64_t>(p) % bins_.period : static_cast<int64_t>(p);
      const size_t bin = static_cast<size_t>(std::upper_bound(edges.begin(), edges.end(), at) - edges.begin()) - 1;
      sum[bin] += losses[p];
      if (count != nullptr) { ++(*count)[bin]; }
    }
  }

  EvalResult result(const std::vector<int64_t>& edges, const std::vector<double>& sum, const std::vector<double>& base,
                    const std::vector<int64_t>& count, int64_t documents) const {
    EvalResult r;
    if (documents == 0) {
      r.status = "failed";
      r.reason = data_.path + ": no document with two tokens";
      return r;
    }
    Json bins = Json::array();
    double total = 0;
    int64_t tokens = 0;
    for (size_t i = 0; i < count.size(); ++i) {
      Json bin = Json::object();
      bin.set("from", edges[i]);
      bin.set("to", edges[i + 1]);
      bin.set("tokens", count[i]);
      if (count[i] > 0) {
        const double n = static_cast<double>(count[i]);
        bin.set("nll", sum[i] / n);
        bin.set("ppl", std::exp(sum[i] / n));
        if (baseline_) { bin.set("gain", (base[i] - sum[i]) / n); }
      }
      bins.push(bin);
      total += sum[i];
      tokens += count[i];
    }
    r.series.set("by_position", bins);
    r.metric("nll", total / static_cast<double>(tokens), tokens);
    r.metric("ppl", std::exp(total / static_cast<double>(tokens)), tokens);
    r.metric("documents", static_cast<double>(documents), documents);
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
