#include "serve/choice.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "core/utf8.h"
#include "data/text/characters.h"

namespace hebb {
namespace {

constexpr double kNotFinite = -9999;

/// log of the sum of exp(logits - their largest), and that one.
struct LogSum {
  double largest, log_sum;

  explicit LogSum(std::span<const double> logits) : largest(*std::max_element(logits.begin(), logits.end())) {
    double sum = 0;
    for (const double logit : logits) { sum += std::exp(logit - largest); }
    log_sum = std::log(sum);
  }
  double log_probability(double logit) const {
    const double value = logit - largest - log_sum;
    return std::isfinite(value) ? value : kNotFinite;
  }
};

/// The k ids with the largest logits, in one pass; ties to the lowest id.
std::vector<int32_t> most_likely(std::span<const double> logits, size_t k) {
  const auto comes_first = [&](int32_t a, int32_t b) {
    const double x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  };
  std::vector<int32_t> best;  // a heap with the last of them on top
  for (int32_t id = 0; id < std::ssize(logits); ++id) {
    if (best.size() == k) {
      if (k == 0 || !comes_first(id, best.front())) { continue; }
      std::pop_heap(best.begin(), best.end(), comes_first);
      best.pop_back();
    }
    best.push_back(id);
    std::push_heap(best.begin(), best.end(), comes_first);
  }
  std::sort_heap(best.begin(), best.end(), comes_first);
  return best;
}

/// Where several ids have the same name the largest value keeps it.
void add_top(std::vector<std::pair<std::string, double>>& top, std::string name, double value) {
  const auto at = std::find_if(top.begin(), top.end(), [&](const auto& t) { return t.first == name; });
  if (at == top.end()) {
    top.emplace_back(std::move(name), value);
  } else {
    at->second = std::max(at->second, value);
  }
}

GenerateOptions options_of(const CompletionRequest& request, size_t index) {
  const auto& prompt = request.prompts[index];
  return {.max_new_tokens = request.max_tokens,
          .sampling = request.sampling,
          .seed = request.seed,
          .stop_at_eos = !request.ignore_eos,
          .begins_text = prompt.ids.size() == (prompt.hides_first ? 1U : 0U)};
}

}  // namespace

std::string token_name(const Tokenizer& tokenizer, int32_t id) {
  const std::string piece = id < tokenizer.vocab_size() ? tokenizer.piece(id) : "";
  if (piece.empty()) { return fmt::format("<id {:d}>", id); }
  if (utf8_first_invalid(piece) == std::string::npos) { return piece; }
  std::string name;
  for (const char byte : piece) { name += fmt::format("<0x{:02X}>", static_cast<unsigned char>(byte)); }
  return name;
}

Choice::Choice(const CompletionRequest& request, size_t index, std::shared_ptr<const Tokenizer> tokenizer)
    : tokenizer_(tokenizer),
      prompt_(request.prompts[index]),
      index_(index),
      max_tokens_(request.max_tokens),
      logprobs_(request.logprobs),
      echo_(request.echo),
      rng_(request.seed, "sample", index),
      text_(tokenizer, options_of(request, index)),
      stop_(request.stops) {
  if (!echo_) { return; }
  Tokenizer::Decoder decoder(tokenizer_);
  for (size_t i = prompt_.hides_first ? 1 : 0; i < prompt_.ids.size(); ++i) {
    prompt_offsets_.push_back(prompt_characters_);
    const std::string more = prompt_.ids[i] < tokenizer_->vocab_size() ? decoder.push(prompt_.ids[i]) : "";
    prompt_characters_ += count_characters(more);
    echoed_ += more;
  }
  const std::string rest = decoder.finish();
  prompt_characters_ += count_characters(rest);
  echoed_ += rest;
  if (logprobs_ && !prompt_.hides_first) {
    entries_.push_back({token_name(*tokenizer_, prompt_.ids[0]), std::nullopt, {}, 0});
  }
}

size_t Choice::first_asked() const {
  const size_t n = prompt_.ids.size();
  if (echo_ && logprobs_ && n > 1) { return 0; }
  return max_tokens_ > 0 ? n - 1 : n;
}

void Choice::take_prompt(size_t i, std::span<const double> logits) {
  if (i < taken_) { return; }
  taken_ = i + 1;
  if (i + 1 < prompt_.ids.size()) {
    TokenEntry next = entry(prompt_.ids[i + 1], logits);
    next.offset = prompt_offsets_[i + (prompt_.hides_first ? 0 : 1)];
    entries_.push_back(std::move(next));
  } else if (max_tokens_ > 0) {
    draw(logits);
  } else {
    end_without_drawing();
  }
}

void Choice::take(std::span<const double> logits) { draw(logits); }

void Choice::end_without_drawing() { finish("length"); }

TokenEntry Choice::entry(int32_t id, std::span<const double> logits) const {
  const LogSum sum(logits);
  TokenEntry entry{token_name(*tokenizer_, id), sum.log_probability(logits[static_cast<size_t>(id)]), {}, 0};
  for (const int32_t other : most_likely(logits, static_cast<size_t>(*logprobs_))) {
    add_top(entry.top, token_name(*tokenizer_, other), sum.log_probability(logits[static_cast<size_t>(other)]));
  }
  add_top(entry.top, entry.piece, *entry.logprob);
  return entry;
}

void Choice::draw(std::span<const double> logits) {
  const int64_t offset = prompt_characters_ + characters_;
  const std::string more = text_.draw(logits, rng_);
  if (logprobs_) {
    TokenEntry drawn = entry(text_.tokens().back(), logits);
    drawn.offset = offset;
    entries_.push_back(std::move(drawn));
  }
  add_text(more);
  if (stop_.is_cut() || text_.ended()) {
    finish("stop");
  } else if (!text_.goes_on()) {
    finish("length");
  }
}

void Choice::add_text(const std::string& more) {
  if (more.empty() || stop_.is_cut()) { return; }
  characters_ += count_characters(more);
  stop_.push(more);
}

void Choice::finish(const char* reason) {
  finish_reason_ = reason;
  add_text(text_.finish());
  if (!stop_.is_cut()) { return; }
  if (finish_reason_ == "length") { finish_reason_ = "stop"; }
  const int64_t end = prompt_characters_ + count_characters(stop_.text());
  for (TokenEntry& entry : entries_) { entry.offset = std::min(entry.offset, end); }
}

std::optional<Delta> Choice::take_delta() {
  if (has_sent_end_) { return std::nullopt; }
  const size_t certain = is_done() ? stop_.text().size() : stop_.settled();
  Delta delta{index_, std::move(echoed_), {}, finish_reason_, std::ssize(text_.tokens())};
  echoed_.clear();
  delta.text += stop_.text().substr(sent_, certain - sent_);
  sent_ = certain;
  if (is_done() || certain == stop_.text().size()) { delta.tokens = std::exchange(entries_, {}); }
  has_sent_end_ = is_done();
  if (delta.text.empty() && delta.tokens.empty() && !is_done()) { return std::nullopt; }
  return delta;
}

}  // namespace hebb
