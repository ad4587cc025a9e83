#include "serve/completion_request.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.h"
#include "eval/prompt.h"
#include "serve/api_error.h"

namespace hebb {
namespace {

constexpr int64_t kMostLogprobs = 20;
constexpr int64_t kMostTokens = INT32_MAX;
constexpr int64_t kMostPerPrompt = 128;  // choices
constexpr size_t kMostChoices = 4096;    // of a request

[[noreturn]] void refuse(const std::string& path, const Json& found, const std::string& expected) {
  throw ApiError(400, fmt::format("{}: found {}, expected {}", path, found.found(), expected), path);
}

/// The members of a request's object. A key whose value is null counts as absent.
class Members {
 public:
  explicit Members(std::string_view body) {
    try {
      json_ = parse_json(body, "body");
    } catch (const ConfigError& error) { throw ApiError(400, error.what()); }
    if (!json_.is_object()) { throw ApiError(400, "body: found " + json_.found() + ", expected a JSON object"); }
  }

  const Json* find(const std::string& key) {
    known_.insert(key);
    const Json* value = json_.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  void read(const std::string& key, bool& value) {
    const Json* json = find(key);
    if (json == nullptr) { return; }
    if (!json->is_bool()) { refuse(key, *json, "true or false"); }
    value = json->as_bool();
  }
  /// A whole number in [lowest, highest].
  std::optional<int64_t> integer(const std::string& key, int64_t lowest, int64_t highest) {
    const Json* json = find(key);
    if (json == nullptr) { return std::nullopt; }
    if (!is_integer(*json, lowest, highest)) {
      refuse(key, *json, fmt::format("an integer from {:d} to {:d}", lowest, highest));
    }
    return json->as_int();
  }
  void read(const std::string& key, double& value, double highest, const std::string& expected) {
    const Json* json = find(key);
    if (json == nullptr) { return; }
    const double number = json->is_number() ? json->as_double() : -1;
    if (!(number >= 0 && number <= highest)) { refuse(key, *json, expected); }
    value = number;
  }
  /// A key of the protocol whose only values are those that change nothing.
  template <class Allowed> void only(const std::string& key, const std::string& expected, Allowed&& is_allowed) {
    const Json* json = find(key);
    if (json != nullptr && !is_allowed(*json)) { refuse(key, *json, expected); }
  }
  int64_t unknown() const {
    return std::count_if(json_.members().begin(), json_.members().end(),
                         [&](const Json::Member& member) { return known_.count(member.first) == 0; });
  }

  static bool is_integer(const Json& json, int64_t lowest, int64_t highest) {
    return json.kind() == Json::Kind::integer && json.as_int() >= lowest && json.as_int() <= highest;
  }

 private:
  Json json_;
  std::set<std::string> known_;
};

std::vector<int32_t> read_ids(const Json& list, const std::string& path, int64_t vocab_size) {
  std::vector<int32_t> ids;
  for (const Json& id : list.items()) {
    if (!Members::is_integer(id, 0, vocab_size - 1)) {
      refuse(fmt::format("{}.{:d}", path, ids.size()), id, fmt::format("an id from 0 to {:d}", vocab_size - 1));
    }
    ids.push_back(static_cast<int32_t>(id.as_int()));
  }
  return ids;
}

CompletionRequest::Prompt of_text(const std::string& text, const std::string& path, const PromptRules& rules) {
  std::vector<int32_t> ids = prompt_ids(*rules.tokenizer, text);
  if (ids.empty()) {
    throw ApiError(400, path + ": found an empty text, expected some text, since the tokenizer has neither BOS nor EOS",
                   path);
  }
  return {std::move(ids), false};
}

CompletionRequest::Prompt of_ids(const Json& list, const std::string& path, const PromptRules& rules) {
  CompletionRequest::Prompt prompt{read_ids(list, path, rules.vocab_size), false};
  const int32_t bos = rules.tokenizer->special().bos;
  if (rules.prepend_bos && (prompt.ids.empty() || prompt.ids[0] != bos)) {
    prompt.ids.insert(prompt.ids.begin(), bos);
    prompt.hides_first = true;
  }
  if (prompt.ids.empty()) { refuse(path, list, "at least one id"); }
  return prompt;
}

std::vector<CompletionRequest::Prompt> read_prompts(const Json* json, const PromptRules& rules) {
  if (json == nullptr) { return {of_text("", "prompt", rules)}; }
  const char* expected = "a string, ids, or an array of one of them";
  if (json->is_string()) { return {of_text(json->as_string(), "prompt", rules)}; }
  if (!json->is_array() || json->items().empty()) { refuse("prompt", *json, expected); }
  const std::vector<Json>& items = json->items();
  if (items[0].is_number()) { return {of_ids(*json, "prompt", rules)}; }
  std::vector<CompletionRequest::Prompt> prompts;
  for (const Json& item : items) {
    const std::string path = fmt::format("prompt.{:d}", prompts.size());
    if (item.kind() != items[0].kind() || (!item.is_string() && !item.is_array())) {
      refuse(path, item, items[0].is_string() ? "a string" : items[0].is_array() ? "an array of ids" : expected);
    }
    prompts.push_back(item.is_string() ? of_text(item.as_string(), path, rules) : of_ids(item, path, rules));
  }
  return prompts;
}

std::vector<std::string> read_stops(const Json* json) {
  std::vector<std::string> stops;
  if (json == nullptr) { return stops; }
  const auto add = [&](const Json& text, const std::string& path) {
    if (!text.is_string()) { refuse(path, text, "a string"); }
    if (!text.as_string().empty()) { stops.push_back(text.as_string()); }
  };
  if (json->is_string()) {
    add(*json, "stop");
  } else if (json->is_array()) {
    for (size_t i = 0; i < json->items().size(); ++i) { add(json->items()[i], fmt::format("stop.{:d}", i)); }
  } else {
    refuse("stop", *json, "a string or an array of strings");
  }
  return stops;
}

/// What the protocol has and this server does not: nothing of it is ignored.
void refuse_unsupported(Members& members, int64_t choices_per_prompt) {
  const auto is_zero = [](const Json& json) { return json.is_number() && json.as_double() == 0; };
  members.only("best_of", "n: all choices are returned",
               [&](const Json& json) { return Members::is_integer(json, choices_per_prompt, choices_per_prompt); });
  members.only("suffix", "no suffix", [](const Json& json) { return json.is_string() && json.as_string().empty(); });
  members.only("logit_bias", "no biases", [](const Json& json) { return json.is_object() && json.members().empty(); });
  members.only("presence_penalty", "0", is_zero);
  members.only("frequency_penalty", "0", is_zero);
}

}  // namespace

CompletionRequest read_completion_request(std::string_view body, const PromptRules& rules) {
  Members members(body);
  CompletionRequest request;
  request.max_tokens = members.integer("max_tokens", 0, kMostTokens).value_or(request.max_tokens);
  members.read("temperature", request.sampling.temperature, 1e6, "a number from 0 to 1e6");
  members.read("top_p", request.sampling.top_p, 1, "a number from 0 to 1");
  request.sampling.top_k = std::max<int64_t>(members.integer("top_k", -1, kMostTokens).value_or(0), 0);
  request.seed = static_cast<uint64_t>(members.integer("seed", INT64_MIN, INT64_MAX).value_or(0));
  request.stops = read_stops(members.find("stop"));
  members.read("echo", request.echo);
  request.logprobs = members.integer("logprobs", 0, kMostLogprobs);
  members.read("stream", request.stream);
  if (const Json* options = members.find("stream_options"); options != nullptr) {
    if (!options->is_object()) { refuse("stream_options", *options, "an object"); }
    const Json* usage = options->find("include_usage");
    if (usage != nullptr && !usage->is_null() && !usage->is_bool()) {
      refuse("stream_options.include_usage", *usage, "true or false");
    }
    request.include_usage = usage != nullptr && usage->is_bool() && usage->as_bool();
  }
  members.read("ignore_eos", request.ignore_eos);
  if (const Json* model = members.find("model"); model != nullptr) {
    if (!model->is_string()) { refuse("model", *model, "a string"); }
    request.model = model->as_string();
  }
  if (const Json* user = members.find("user"); user != nullptr && !user->is_string()) {
    refuse("user", *user, "a string");
  }
  request.choices_per_prompt = members.integer("n", 1, kMostPerPrompt).value_or(1);
  refuse_unsupported(members, request.choices_per_prompt);
  for (const CompletionRequest::Prompt& prompt : read_prompts(members.find("prompt"), rules)) {
    request.prompts.insert(request.prompts.end(), static_cast<size_t>(request.choices_per_prompt), prompt);
    if (request.prompts.size() > kMostChoices) {
      throw ApiError(
          400, fmt::format("prompt: found more than {:d} choices, expected fewer prompts or a smaller n", kMostChoices),
          "prompt");
    }
  }
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    const auto tokens = std::ssize(request.prompts[i].ids);
    if (tokens + request.max_tokens > rules.max_length.value_or(INT64_MAX)) {
      throw ApiError(400,
                     fmt::format("prompt.{:d}: found {:d} tokens and max_tokens {:d}, expected at most {:d} together "
                                 "(--max-length)",
                                 static_cast<int64_t>(i) / request.choices_per_prompt, tokens, request.max_tokens,
                                 *rules.max_length),
                     "prompt");
    }
  }
  request.ignored_keys = members.unknown();
  return request;
}

std::vector<int32_t> read_tokenize_request(std::string_view body, const Tokenizer& tokenizer) {
  Members members(body);
  const Json* prompt = members.find("prompt");
  if (prompt == nullptr || !prompt->is_string()) { refuse("prompt", prompt != nullptr ? *prompt : Json(), "a string"); }
  bool adds_special = false;
  members.read("add_special_tokens", adds_special);
  const Tokenizer::Special& special = tokenizer.special();
  std::vector<int32_t> ids;
  if (adds_special && special.add_bos) { ids.push_back(special.bos); }
  if (const int32_t own = tokenizer.id_of_special(prompt->as_string()); own >= 0) {
    ids.push_back(own);
  } else {
    const std::vector<int32_t> text = tokenizer.encode(prompt->as_string());
    ids.insert(ids.end(), text.begin(), text.end());
  }
  return ids;
}

std::vector<int32_t> read_detokenize_request(std::string_view body, const Tokenizer& tokenizer) {
  Members members(body);
  const Json* tokens = members.find("tokens");
  if (tokens == nullptr || !tokens->is_array()) {
    refuse("tokens", tokens != nullptr ? *tokens : Json(), "an array of ids");
  }
  return read_ids(*tokens, "tokens", tokenizer.vocab_size());
}

}  // namespace hebb
