// The completions protocol without HTTP: requests, choices and the engine that answers them.
#if HEBB_HAVE_SENTENCEPIECE
#include <sentencepiece_trainer.h>
#endif

#include <chrono>
#include <thread>

#include "serve/http_server.h"
#include "tests/eval/text_model.h"

namespace {

std::shared_ptr<Job> job_of(const std::string& body, int64_t vocab_size = kByteVocab) {
  const auto tokenizer = Tokenizer::load({"bytes", "", false, true});
  return std::make_shared<Job>(read_completion_request(body, {tokenizer, vocab_size, std::nullopt, false}), tokenizer);
}

/// Adds what has come to the sums of each choice.
void receive(Job& job, std::vector<Delta>& sums) {
  sums.resize(job.choices.size());
  for (const Delta& delta : job.receive()) {
    Delta& sum = sums[delta.index];
    sum.text += delta.text;
    sum.tokens.insert(sum.tokens.end(), delta.tokens.begin(), delta.tokens.end());
    sum.finish_reason = delta.finish_reason;
    sum.completion_tokens = delta.completion_tokens;
  }
}

/// The answers of an engine to requests, each of which comes some turns behind the one before: the sum of what each
/// choice gives. `each_turn` looks at the engine.
std::vector<std::vector<Delta>> answers_of(ScoringModel& model, const std::vector<std::string>& bodies,
                                           const EngineOptions& options,
                                           const std::function<void(const Engine&)>& each_turn = {}) {
  constexpr int kTurnsBetween = 7;
  Engine engine(model, Tokenizer::load({"bytes", "", false, true}), options);
  std::vector<std::shared_ptr<Job>> jobs;
  std::vector<std::vector<Delta>> sums(bodies.size());
  int turns = 0;
  engine.run([&] {
    if (turns++ % kTurnsBetween == 0 && jobs.size() < bodies.size()) {
      jobs.push_back(job_of(bodies[jobs.size()]));
      engine.submit(jobs.back());
    }
    if (each_turn) { each_turn(engine); }
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (jobs[i]->is_behind()) { receive(*jobs[i], sums[i]); }
    }
    return jobs.size() == bodies.size() && engine.is_idle();
  });
  for (size_t i = 0; i < jobs.size(); ++i) {
    while (!jobs[i]->is_complete()) { receive(*jobs[i], sums[i]); }
  }
  return sums;
}

/// The same for one request.
std::vector<Delta> answers_of(ScoringModel& model, const std::string& body, int64_t max_batch = 8) {
  return answers_of(model, {body}, {.max_batch = max_batch})[0];
}

/// The error that a request ends with.
ApiError error_of(ScoringModel& model, const std::string& body) {
  try {
    answers_of(model, body);
  } catch (const ApiError& error) { return error; }
  FAIL("no error");
  return {0, ""};
}

std::string repeated(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) { all += text; }
  return all;
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
  CHECK_THAT(fault_of(R"({"n": 129})"), Contains("n: found 129, expected an integer from 1 to 128"));
  CHECK_THAT(fault_of(R"({"n": 128, "prompt": [)" + std::string(R"("a")") + repeated(R"(, "a")", 32) + "]}"),
             Contains("4096 choices"));
  CHECK(fault_of(R"({"n": 2, "best_of": 2})") == "");
  for (const char* key : {R"("n": 0)", R"("best_of": 2)", R"("suffix": "x")", R"("logit_bias": {"1": 1})",
                          R"("presence_penalty": 0.5)", R"("frequency_penalty": 1)"}) {
    CHECK(fault_of(std::string("{") + key + "}") != "");
  }
  CHECK_THAT(fault_of(R"({"prompt": "abcdefghij", "max_tokens": 11})"), Contains("10 tokens and max_tokens 11"));
  CHECK_THAT(fault_of(R"({"prompt": ["a", "abcdefghij"], "max_tokens": 11, "n": 3})"), Contains("prompt.1: found 10"));
  CHECK(fault_of(R"({"top_k": -1})") == "");  // of some clients: all ids
  CHECK_THAT(fault_of(R"({"top_k": -2})"), Contains("top_k: found -2, expected an integer from -1"));
  CHECK_THAT(fault_of(R"({"user": 1})"), Contains("user: found 1, expected a string"));
  CHECK(fault_of(R"({"prompt": "abcdefghij", "max_tokens": 10, "n": 1, "stop": null, "some": 1})") == "");
}

TEST_CASE("errors have the protocol's type, and only a missing key has a code", "[fast]") {
  const auto error = [](int status) { return error_body(ApiError(status, "text")).at("error"); };
  CHECK(error(401).at("code").as_string() == "invalid_api_key");
  CHECK(error(401).at("type").as_string() == "authentication_error");
  for (const int status : {400, 404, 500}) { CHECK(error(status).at("code").is_null()); }
}

TEST_CASE("scores of an answer are those of the evaluations", "[fast]") {
  const BigramModel files(random_table(5));
  ScoringModel model = files.load();
  const std::vector<Delta> found =
      answers_of(model, R"({"prompt": ["abc", "x"], "max_tokens": 1, "temperature": 0, "echo": true, "logprobs": 1})");
  REQUIRE(found[0].tokens.size() == 4);
  REQUIRE(found[1].tokens.size() == 2);
  for (const size_t i : {size_t{0}, size_t{1}, size_t{2}}) {
    CHECK(found[0].tokens[i].piece == std::string("abc").substr(i, 1));
  }
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

void check_equal(const Delta& found, const Delta& expected) {
  CHECK(found.text == expected.text);
  CHECK(found.finish_reason == expected.finish_reason);
  CHECK(found.completion_tokens == expected.completion_tokens);
  REQUIRE(found.tokens.size() == expected.tokens.size());
  for (size_t t = 0; t < found.tokens.size(); ++t) {
    CHECK(found.tokens[t].piece == expected.tokens[t].piece);
    CHECK(found.tokens[t].logprob == expected.tokens[t].logprob);
  }
}

TEST_CASE("a text that comes to logits that are not finite leaves the others of its batch alone", "[fast]") {
  // The embedding says which letter is the largest logit: of a c, of c a; of b x, behind which nothing is finite.
  const TextModel files(R"({"vocab_size": 259, "hidden_size": 4, "num_layers": 1, "layers": {
      "a": {"type": "attention", "num_heads": 1, "head_dim": 4, "window": 1}, "m": {"type": "swiglu", "intermediate_size": 4}},
      "pattern": [{"mixer": "a", "ffn": "m"}]})",
                        [](Param& p, double* values) {
                          if (!p.is_matrix()) { return; }
                          std::fill(values, values + p.value.numel(), 0.0);
                          const bool is_head = p.name() == "lm_head.weight";
                          if (!is_head && p.name() != "embed.weight") { return; }
                          values[(is_head ? 'c' : 'a') * 4 + 0] = 1;
                          values[(is_head ? 'a' : 'c') * 4 + 1] = 1;
                          values[(is_head ? 'x' : 'b') * 4 + 2] = 1;
                          if (!is_head) { values['x' * 4 + 3] = std::nan(""); }
                        });
  ScoringModel model = files.load();
  const auto body = [](const char* prompt) {
    return R"({"prompt": ")" + std::string(prompt) + R"(", "temperature": 0, "max_tokens": 6})";
  };
  Engine engine(model, Tokenizer::load({"bytes", "", false, true}), {});
  const auto good = job_of(body("a")), bad = job_of(body("b"));
  engine.submit(good);
  engine.submit(bad);
  engine.run([&] { return engine.is_idle(); });
  std::vector<Delta> sums;
  while (!good->is_complete()) { receive(*good, sums); }
  CHECK(sums[0].text == "cacaca");
  CHECK_THROWS_WITH(
      [&] {
        while (!bad->is_complete()) { bad->receive(); }
      }(),
      Contains("no finite number"));
}

TEST_CASE("requests that grow together give the bits that each gives alone, whenever they come and go", "[fast]") {
  std::vector<std::string> bodies;
  for (const auto& [prompt, tokens, more] : {std::tuple{"one", 700, R"("temperature": 0)"},
                                             {"two and", 9, R"("seed": 3)"},
                                             {"3", 650, R"("top_k": 9)"},
                                             {"The fourth prompt is longer than the window", 40, R"("logprobs": 2)"},
                                             {"5", 600, R"("seed": 9)"}}) {
    bodies.push_back(R"({"ignore_eos": true, "prompt": ")" + std::string(prompt) + R"(", "max_tokens": )" +
                     std::to_string(tokens) + ", " + more + "}");
  }
  for (const bool memory : {false, true}) {
    const TextModel files(byte_model(memory));
    ScoringModel model = files.load();
    CHECK(model.can_join() != memory);
    std::vector<Delta> alone;
    for (const std::string& body : bodies) { alone.push_back(answers_of(model, body)[0]); }
    for (const auto& [batch, streams] : {std::pair{8, 8}, {2, 8}, {3, 3}}) {
      int64_t most = 0;
      const auto together = answers_of(model, bodies, {.max_batch = batch, .max_streams = streams},
                                       [&](const Engine& engine) { most = std::max(most, engine.counts().streams); });
      CHECK(most >= 3);
      CHECK(most <= streams);
      for (size_t i = 0; i < bodies.size(); ++i) { check_equal(together[i][0], alone[i]); }
    }
  }
}

TEST_CASE("a client that reads slowly holds up its own text alone", "[fast]") {
  const TextModel files(byte_model(false));
  ScoringModel model = files.load();
  const std::string body = R"({"prompt": "a", "max_tokens": 2000, "ignore_eos": true})";
  Engine engine(model, Tokenizer::load({"bytes", "", false, true}), {});
  const auto slow = job_of(body), quick = job_of(body);
  engine.submit(slow);
  engine.submit(quick);
  std::vector<Delta> read, rest;
  engine.run([&] {
    if (quick->is_behind()) { receive(*quick, read); }
    return !read.empty() && read[0].completion_tokens > 1500;
  });
  const int64_t generated = engine.counts().generated_tokens;
  CHECK(slow->is_behind());
  CHECK(generated < 1500 + 2 * 600);
  engine.run([&] {
    if (slow->is_behind()) { receive(*slow, rest); }
    if (quick->is_behind()) { receive(*quick, read); }
    return engine.is_idle();
  });
  while (!slow->is_complete()) { receive(*slow, rest); }
  while (!quick->is_complete()) { receive(*quick, read); }
  CHECK(rest[0].completion_tokens == 2000);
  check_equal(rest[0], read[0]);
}

TEST_CASE("several choices of several prompts come in order, each with draws of its own", "[fast]") {
  for (const bool memory : {false, true}) {
    const TextModel files(byte_model(memory));
    ScoringModel model = files.load();
    const std::string rest = R"(, "max_tokens": 9, "seed": 4, "echo": true, "logprobs": 2, "ignore_eos": true})";
    const std::vector<Delta> together = answers_of(model, R"({"prompt": ["one", "two and"], "n": 2)" + rest, 2);
    const std::vector<Delta> repeated =
        answers_of(model, R"({"prompt": ["one", "one", "two and", "two and"])" + rest, 8);
    REQUIRE(together.size() == 4);
    for (size_t i = 0; i < 4; ++i) { check_equal(together[i], repeated[i]); }
    CHECK(together[0].text != together[1].text);
    check_equal(together[0], answers_of(model, R"({"prompt": "one")" + rest)[0]);
  }
}

TEST_CASE("choices of one prompt read it once, and give what they give one after the other", "[fast]") {
  const TextModel files(byte_model(false));
  ScoringModel model = files.load();
  const std::string prompt = repeated("a long prompt, ", 90), other = repeated("another one, ", 90);
  for (const char* rest : {R"("max_tokens": 1, "logprobs": 1)", R"("max_tokens": 7, "logprobs": 1)",
                           R"("max_tokens": 3, "logprobs": 1, "echo": true)", R"("max_tokens": 0)"}) {
    INFO(rest);
    const std::string body =
        R"({"prompt": [")" + prompt + "\", \"" + other + R"("], "n": 3, "ignore_eos": true, "seed": 4, )" + rest + "}";
    int64_t read = 0;
    const auto answers = [&](int64_t max_batch) {
      return answers_of(model, {body}, {.max_batch = max_batch}, [&](const Engine& engine) {
        read = engine.counts().prompt_tokens;
        CHECK(engine.counts().streams >= 0);
        CHECK(engine.counts().streams <= max_batch);  // three tokens make no room for others
      })[0];
    };
    const std::vector<Delta> apart = answers(1), together = answers(6);
    const bool reads = std::string(rest) != R"("max_tokens": 0)";
    CHECK(read == (reads ? std::ssize(prompt) + std::ssize(other) : 0));
    REQUIRE(together.size() == 6);
    for (size_t i = 0; i < 6; ++i) { check_equal(together[i], apart[i]); }
    if (reads) { CHECK(together[0].tokens.back().logprob != together[3].tokens.back().logprob); }
    CHECK(answers(4)[5].completion_tokens == together[5].completion_tokens);
  }
}

TEST_CASE("a prompt that several choices read is failed for all of them", "[fast]") {
  const TextModel files(byte_model(false), [](Param& p, double* values) {
    if (p.name() == "embed.weight") { values['x' * 12] = std::nan(""); }
  });
  ScoringModel model = files.load();
  for (const char* rest : {R"(, "max_tokens": 3})", R"(, "max_tokens": 1})"}) {
    CHECK(error_of(model, R"({"prompt": "a x", "n": 3)" + std::string(rest)).status == 500);
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

TEST_CASE("a stop string that what is left of a character completes is a stop", "[fast]") {
  const BigramModel files({{{'a', 0xE2}, 50.0}});
  ScoringModel model = files.load();
  const Delta cut = answers_of(model, R"({"prompt": "a", "temperature": 0, "max_tokens": 1, "stop": "\ufffd"})")[0];
  CHECK(cut.text == "");
  CHECK(cut.finish_reason == "stop");
}

TEST_CASE("what may begin a stop string is held back until it is none", "[fast]") {
  const BigramModel files({{{'a', 'b'}, 50.0}, {{'b', 'c'}, 50.0}, {{'c', 'e'}, 50.0}, {{'e', 'f'}, 50.0}});
  ScoringModel model = files.load();
  const auto texts_of = [&](const std::string& stop) {
    Engine engine(model, Tokenizer::load({"bytes", "", false, true}), {});
    const auto job = job_of(R"({"prompt": "a", "temperature": 0, "max_tokens": 4, "stop": ")" + stop + "\"}");
    engine.submit(job);
    engine.run([&] { return engine.is_idle(); });
    std::vector<std::string> texts;
    while (!job->is_complete()) {
      for (const Delta& delta : job->receive()) { texts.push_back(delta.text); }
    }
    return texts;
  };
  CHECK(texts_of("cd") == std::vector<std::string>{"b", "ce", "f"});
  CHECK(texts_of("ce") == std::vector<std::string>{"b", ""});
}

TEST_CASE("an engine without work asks ten times a second whether to stop", "[fast]") {
  const BigramModel files({});
  ScoringModel model = files.load();
  Engine engine(model, Tokenizer::load({"bytes", "", true, true}), {});
  int asked = 0;
  const auto begin = std::chrono::steady_clock::now();
  engine.run([&] { return ++asked > 3; });
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(300));
}

TEST_CASE("offsets count characters, and an echoed prompt is text", "[fast]") {
  const BigramModel files({{{'b', 0xC3}, 50.0}, {{0xC3, 0xA9}, 50.0}, {{0xA9, 'd'}, 50.0}, {{'d', 'b'}, 50.0}});
  ScoringModel model = files.load();
  const std::string body = R"({"prompt": "éb", "temperature": 0, "max_tokens": 4, "echo": true)";
  const Delta found = answers_of(model, body + R"(, "logprobs": 0})")[0];
  CHECK(found.text == "ébédb");
  std::vector<int64_t> offsets;
  for (const TokenEntry& token : found.tokens) { offsets.push_back(token.offset); }
  CHECK(offsets == std::vector<int64_t>{0, 0, 1, 2, 2, 3, 4});
  CHECK(answers_of(model, body + "}")[0].text == "ébédb");
  const Delta cut = answers_of(model, body + R"(, "logprobs": 0, "stop": "éd"})")[0];
  CHECK(cut.text == "éb");
  CHECK(cut.tokens.back().offset == 2);
  // A prompt that ends inside a character shows a replacement, which counts.
  const Delta broken =
      answers_of(model, R"({"prompt": [98, 195], "temperature": 0, "max_tokens": 1, "echo": true, "logprobs": 0})")[0];
  CHECK(broken.text.starts_with("b\uFFFD"));
  CHECK(broken.tokens.back().offset == 2);
}

TEST_CASE("ids get BOS in front where they have none, and no array shows it", "[fast]") {
  const auto tokenizer = Tokenizer::load({"bytes", "", true, true});
  const PromptRules rules{tokenizer, kByteVocab, std::nullopt, true};
  const auto prompt_of = [&](const std::string& prompt) {
    return read_completion_request(R"({"prompt": )" + prompt + "}", rules).prompts[0];
  };
  CHECK(prompt_of("[97, 98]").ids == std::vector<int32_t>{kBos, 97, 98});
  CHECK(prompt_of("[97, 98]").hides_first);
  CHECK(prompt_of("[256, 97]").ids == std::vector<int32_t>{kBos, 97});
  CHECK_FALSE(prompt_of("[256, 97]").hides_first);
  CHECK(prompt_of("[[]]").ids == std::vector<int32_t>{kBos});
  CHECK(prompt_of(R"("ab")").ids == std::vector<int32_t>{kBos, 97, 98});
  CHECK_FALSE(prompt_of(R"("ab")").hides_first);

  const BigramModel files({{{kBos, 'a'}, 5.0}, {{'a', 'b'}, 4.0}});
  ScoringModel model = files.load();
  Engine engine(model, tokenizer, {});
  const std::string body = R"({"prompt": [97, 98], "max_tokens": 0, "echo": true, "logprobs": 0})";
  const auto job = std::make_shared<Job>(read_completion_request(body, rules), tokenizer);
  engine.submit(job);
  engine.run([&] { return engine.is_idle(); });
  std::vector<Delta> sums;
  while (!job->is_complete()) { receive(*job, sums); }
  CHECK(sums[0].text == "ab");
  REQUIRE(sums[0].tokens.size() == 2);
  CHECK(sums[0].tokens[0].logprob.value() == Approx(files.log_p(kBos, 'a')).epsilon(1e-9));
  CHECK(sums[0].tokens[1].logprob.value() == Approx(files.log_p('a', 'b')).epsilon(1e-9));
}

#if HEBB_HAVE_SENTENCEPIECE
TEST_CASE("a text that begins has no space in front, one that goes on has", "[fast]") {
  const TempFolder folder;
  std::string text, trained;
  for (int i = 0; i < 50; ++i) { text += "morning river\n"; }
  const auto status = sentencepiece::SentencePieceTrainer::Train({{"input", folder.write("in.txt", text).string()},
                                                                  {"model_type", "bpe"},
                                                                  {"vocab_size", "40"},
                                                                  {"hard_vocab_limit", "false"},
                                                                  {"minloglevel", "3"}},
                                                                 nullptr, &trained);
  REQUIRE(status.ok());
  const auto tokenizer = Tokenizer::load({"sentencepiece", folder.write("m.model", trained).string(), true, true});
  const int32_t word = tokenizer->encode("river").back();
  const auto drawn = [&](const std::string& prompt) {
    const std::string body = R"({"prompt": )" + prompt + R"(, "max_tokens": 1, "temperature": 0})";
    Choice choice(read_completion_request(body, {tokenizer, tokenizer->vocab_size(), std::nullopt, true}), 0,
                  tokenizer);
    std::vector<double> logits(static_cast<size_t>(tokenizer->vocab_size()));
    logits[static_cast<size_t>(word)] = 9;
    choice.take_prompt(choice.prompt().size() - 1, logits);
    return choice.take_delta()->text;
  };
  CHECK(drawn("[[]]") == "river");
  CHECK(drawn("[[" + std::to_string(word) + "]]") == " river");
}
#endif

TEST_CASE("texts become ids with BOS where it is asked for, pieces of special tokens their ids", "[fast]") {
  const auto with = Tokenizer::load({"bytes", "", true, true}), without = Tokenizer::load({"bytes", "", false, true});
  const auto ids = [](const Tokenizer& tokenizer, const std::string& rest) {
    return read_tokenize_request(R"({"prompt": )" + rest + "}", tokenizer);
  };
  CHECK(ids(*with, R"("a")") == std::vector<int32_t>{97});
  CHECK(ids(*with, R"("a", "add_special_tokens": true)") == std::vector<int32_t>{kBos, 97});
  CHECK(ids(*without, R"("a", "add_special_tokens": true)") == std::vector<int32_t>{97});
  CHECK(ids(*without, R"("</s>")") == std::vector<int32_t>{kEos});
  CHECK(ids(*without, R"("a</s>")").size() == 5);
}

TEST_CASE("an engine that has ended fails what waits in it and what comes later", "[fast]") {
  const TextModel files(byte_model(false));
  ScoringModel model = files.load();
  Engine engine(model, Tokenizer::load({"bytes", "", false, true}), {});
  const auto before = job_of("{}"), after = job_of("{}");
  engine.submit(before);
  engine.end(ApiError(503, "the server stops"));
  engine.submit(after);
  CHECK(engine.is_idle());
  CHECK_THROWS_WITH(before->receive(), Contains("the server stops"));
  CHECK_THROWS_WITH(after->receive(), Contains("the server stops"));
}

}  // namespace
