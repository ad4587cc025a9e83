// The completions protocol without HTTP: requests, choices and the engine that answers them.
#include <thread>

#include "serve/http_server.h"
#include "tests/eval/text_model.h"

namespace {

/// The answers of an engine to one request: the sum of what each choice gives.
std::vector<Delta> answers_of(ScoringModel& model, const std::string& body, int64_t max_batch = 8) {
  const auto tokenizer = Tokenizer::load({"bytes", "", false, true});
  const PromptRules rules{tokenizer, kByteVocab, std::nullopt, false};
  Engine engine(model, tokenizer, {.max_batch = max_batch});
  const auto job = std::make_shared<Job>(read_completion_request(body, rules), tokenizer);
  engine.submit(job);
  engine.run([&] { return engine.is_idle(); });
  std::vector<Delta> sums(job->choices.size());
  while (!job->is_complete()) {
    for (const Delta& delta : job->receive()) {
      Delta& sum = sums[delta.index];
      sum.text += delta.text;
      sum.tokens.insert(sum.tokens.end(), delta.tokens.begin(), delta.tokens.end());
      sum.finish_reason = delta.finish_reason;
      sum.completion_tokens = delta.completion_tokens;
    }
  }
  return sums;
}

/// The error that a request ends with.
ApiError error_of(ScoringModel& model, const std::string& body) {
  try {
    answers_of(model, body);
  } catch (const ApiError& error) { return error; }
  FAIL("no error");
  return {0, ""};
}

std::string fault_of(const std::string& body) {
  const PromptRules rules{Tokenizer::load({"bytes", "", false, true}), kByteVocab, 20, false};
  try {
    read_completion_request(body, rules);
  } catch (const ApiError& error) {
    CHECK(error.status == 400);
    return error.what();
  }
  return "";
}

TEST_CASE("requests name the key that is wrong, what was found and what was expected", "[fast]") {
  CHECK_THAT(fault_of("{"), Contains("body"));
  CHECK_THAT(fault_of("[1]"), Contains("expected a JSON object"));
  CHECK_THAT(fault_of(R"({"max_tokens": "x"})"), Contains("max_tokens: found \"x\", expected an integer from 0"));
  CHECK_THAT(fault_of(R"({"temperature": -1})"), Contains("temperature: found -1"));
  CHECK_THAT(fault_of(R"({"prompt": [1, 259]})"), Contains("prompt.1: found 259, expected an id from 0 to 258"));
  CHECK_THAT(fault_of(R"({"prompt": ["a", 1]})"), Contains("prompt.1: found 1, expected a string"));
  CHECK_THAT(fault_of(R"({"prompt": []})"), Contains("prompt: found"));
  CHECK_THAT(fault_of(R"({"prompt": [[]]})"), Contains("at least one id"));
  CHECK_THAT(fault_of(R"({"stop": 1})"), Contains("stop: found 1"));
  CHECK_THAT(fault_of(R"({"logprobs": 21})"), Contains("logprobs: found 21"));
  CHECK_THAT(fault_of(R"({"stream_options": {"include_usage": 1}})"), Contains("stream_options.include_usage"));
  for (const char* key : {R"("n": 2)", R"("best_of": 2)", R"("suffix": "x")", R"("logit_bias": {"1": 1})",
                          R"("presence_penalty": 0.5)", R"("frequency_penalty": 1)"}) {
    CHECK(fault_of(std::string("{") + key + "}") != "");
  }
  CHECK_THAT(fault_of(R"({"prompt": "abcdefghij", "max_tokens": 11})"), Contains("10 tokens and max_tokens 11"));
  CHECK(fault_of(R"({"prompt": "abcdefghij", "max_tokens": 10, "n": 1, "stop": null, "some": 1})") == "");
}

TEST_CASE("scores of an answer are those of the evaluations", "[fast]") {
  const BigramModel files(random_table(5));
  ScoringModel model = files.load();
  const std::vector<Delta> found =
      answers_of(model, R"({"prompt": ["abc", "x"], "max_tokens": 1, "temperature": 0, "echo": true, "logprobs": 1})");
  REQUIRE(found[0].tokens.size() == 4);
  REQUIRE(found[1].tokens.size() == 2);
  CHECK_FALSE(found[0].tokens[0].logprob.has_value());
  CHECK(*found[0].tokens[1].logprob == Approx(files.log_p('a', 'b')).epsilon(1e-9));
  CHECK(*found[0].tokens[2].logprob == Approx(files.log_p('b', 'c')).epsilon(1e-9));
  CHECK(found[0].tokens[3].offset == 3);
  CHECK(answers_of(model, R"({"prompt": "abc", "max_tokens": 0, "echo": true, "logprobs": 0})")[0].tokens.size() == 3);
}

TEST_CASE("the most likely ids come with a token, ties from the lowest id on", "[fast]") {
  BigramModel::Table table = random_table(7);
  table[{'q', 'z'}] = table[{'q', 'b'}] = table[{'q', 'y'}] = 20;
  const BigramModel files(table);
  ScoringModel model = files.load();
  for (int k : {0, 1, 2, 5, 20}) {
    const Delta found = answers_of(
        model, R"({"prompt": "q~", "max_tokens": 0, "echo": true, "logprobs": )" + std::to_string(k) + "}")[0];
    std::vector<std::pair<double, int32_t>> all;
    for (int32_t id = 0; id < kByteVocab; ++id) { all.emplace_back(-files.log_p('q', id), id); }
    std::sort(all.begin(), all.end());
    const auto& top = found.tokens[1].top;
    REQUIRE(std::ssize(top) == k + 1);  // and the token itself
    const auto tokenizer = Tokenizer::load({"bytes", "", false, true});
    for (size_t i = 0; i < static_cast<size_t>(k); ++i) {
      CHECK(top[i].first == token_name(*tokenizer, all[i].second));
      CHECK(top[i].second == Approx(-all[i].first).epsilon(1e-9));
    }
    CHECK(top.back().first == "~");
  }
}

TEST_CASE("logits that are not finite end their own request with 500", "[fast]") {
  const TextModel files(byte_model(false), [](Param& p, double* values) {
    if (p.name() == "embed.weight") { values['x' * 12] = std::nan(""); }
  });
  ScoringModel model = files.load();
  for (const char* rest : {R"(, "max_tokens": 3})", R"(, "max_tokens": 0, "echo": true, "logprobs": 0})"}) {
    const ApiError error = error_of(model, R"({"prompt": ["good", "a x", "fine"])" + std::string(rest));
    CHECK(error.status == 500);
    CHECK_THAT(error.what(), Contains("no finite number"));
    CHECK(answers_of(model, R"({"prompt": ["good", "fine"])" + std::string(rest)).size() == 2);
  }
}

TEST_CASE("several prompts in a request give what each gives alone", "[fast]") {
  for (const bool memory : {false, true}) {
    const TextModel files(byte_model(memory));
    ScoringModel model = files.load();
    const std::string rest = R"(, "max_tokens": 9, "temperature": 0, "echo": true, "logprobs": 2, "ignore_eos": true})";
    const std::vector<Delta> together = answers_of(model, R"({"prompt": ["one", "two and", "3"])" + rest, 2);
    size_t i = 0;
    for (const char* prompt : {"one", "two and", "3"}) {
      const Delta alone = answers_of(model, "{\"prompt\": \"" + std::string(prompt) + "\"" + rest)[0];
      const Delta& found = together[i++];
      CHECK(found.text == alone.text);
      CHECK(found.completion_tokens == 9);
      REQUIRE(found.tokens.size() == alone.tokens.size());
      for (size_t t = 1; t < found.tokens.size(); ++t) {
        CHECK(*found.tokens[t].logprob == Approx(*alone.tokens[t].logprob).epsilon(1e-9));
      }
    }
  }
}

TEST_CASE("a stop string that several tokens make is cut, and its tokens stay in the arrays", "[fast]") {
  const BigramModel files({{{'a', 'b'}, 50.0}, {{'b', 'c'}, 50.0}, {{'c', 'd'}, 50.0}, {{'d', kEos}, 50.0}});
  ScoringModel model = files.load();
  const Delta cut = answers_of(model, R"({"prompt": "a", "temperature": 0, "logprobs": 0, "stop": ["cd", ""]})")[0];
  CHECK(cut.text == "b");
  CHECK(cut.finish_reason == "stop");
  CHECK(cut.tokens.size() == 3);
  const Delta ended = answers_of(model, R"({"prompt": "a", "temperature": 0, "logprobs": 0})")[0];
  CHECK(ended.text == "bcd");
  CHECK(ended.finish_reason == "stop");
  REQUIRE(ended.tokens.size() == 4);
  CHECK(ended.tokens[3].piece == "</s>");
  CHECK(answers_of(model, R"({"prompt": "a", "temperature": 0, "max_tokens": 2})")[0].finish_reason == "length");
}

TEST_CASE("an engine that has ended fails what waits in it and what comes later", "[fast]") {
  const TextModel files(byte_model(false));
  ScoringModel model = files.load();
  const auto tokenizer = Tokenizer::load({"bytes", "", false, true});
  const PromptRules rules{tokenizer, kByteVocab, std::nullopt, false};
  Engine engine(model, tokenizer, {});
  const auto job_of = [&] { return std::make_shared<Job>(read_completion_request("{}", rules), tokenizer); };
  const auto before = job_of(), after = job_of();
  engine.submit(before);
  engine.end(ApiError(503, "the server stops"));
  engine.submit(after);
  CHECK(engine.is_idle());
  CHECK_THROWS_WITH(before->receive(), Contains("the server stops"));
  CHECK_THROWS_WITH(after->receive(), Contains("the server stops"));
}

}  // namespace
