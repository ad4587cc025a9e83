#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "data/tokenizer/tokenizer.h"
#include "eval/sampling.h"

namespace hebb {

/// What a prompt may be.
struct PromptRules {
  std::shared_ptr<const Tokenizer> tokenizer;
  int64_t vocab_size = 0;             // of the model
  std::optional<int64_t> max_length;  // of a prompt and what follows it [tokens]
  bool prepend_bos = false;           // ids that do not begin with BOS get one
};

/// The body of POST /v1/completions (docs/verbs/serve.md).
struct CompletionRequest {
  struct Prompt {
    std::vector<int32_t> ids;
    bool hides_first = false;  // the first id is not the client's
  };
  std::vector<Prompt> prompts;  // one for each choice: those of a prompt of the client follow each other
  int64_t choices_per_prompt = 1;
  int64_t max_tokens = 16;
  Sampling sampling;
  uint64_t seed = 0;
  std::vector<std::string> stops;  // none is empty
  bool echo = false, stream = false, include_usage = false, ignore_eos = false;
  std::optional<int64_t> logprobs;  // so many of the most likely ids beside each one
  std::string model;                // as the client calls it
  int64_t ignored_keys = 0;         // that are not known
};

/// Errors: ApiError 400 that names the key, what was found and what was expected.
CompletionRequest read_completion_request(std::string_view body, const PromptRules& rules);

/// {"prompt": TEXT, "add_special_tokens": BOOL} of POST /tokenize as ids. A text that is the piece of a special id is
/// that id. Errors: ApiError 400.
std::vector<int32_t> read_tokenize_request(std::string_view body, const Tokenizer& tokenizer);

/// The ids of {"tokens": [ID...]} of POST /detokenize. Errors: ApiError 400.
std::vector<int32_t> read_detokenize_request(std::string_view body, const Tokenizer& tokenizer);

}  // namespace hebb
