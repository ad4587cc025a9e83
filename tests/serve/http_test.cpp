// The server over loopback.
#if HEBB_HAVE_SERVE
#include <httplib.h>

#include <thread>

#include "serve/http_server.h"
#include "tests/eval/text_model.h"

namespace {

/// A server with an engine on a thread of its own.
struct Service {
  explicit Service(const std::string& key = "") : model(files.load()), engine(model, files.tokenizer, {}) {
    ServerOptions options;
    options.port = 0;
    options.name = "small";
    options.api_key = key;
    options.max_payload = 20000;
    options.rules = {files.tokenizer, kByteVocab, std::nullopt, false};
    server = std::make_unique<HttpServer>(engine, options);
    thread = std::thread([this] { engine.run([this] { return ends.load(); }); });
  }
  ~Service() {
    ends = true;
    thread.join();
    engine.end(ApiError(503, "end"));
    server.reset();
  }
  httplib::Client client() const { return httplib::Client("127.0.0.1", server->port()); }
  Json post(const std::string& path, const std::string& body, int status = 200) const {
    auto c = client();
    const auto result = c.Post(path, body, "application/json");
    REQUIRE(result);
    CHECK(result->status == status);
    return parse_json(result->body, path);
  }

  TextModel files{byte_model(false)};
  ScoringModel model;
  Engine engine;
  std::unique_ptr<HttpServer> server;
  std::atomic<bool> ends = false;
  std::thread thread;
};

TEST_CASE("every route answers, and errors are those of the protocol", "[fast]") {
  const Service s;
  auto client = s.client();
  CHECK(client.Get("/health")->status == 200);
  CHECK(parse_json(client.Get("/v1/models")->body, "m").at("data").items()[0].at("id").as_string() == "small");
  CHECK(client.Get("/v1/models/small")->status == 200);
  CHECK(client.Get("/v1/models/other")->status == 404);
  CHECK(client.Get("/v1/completions")->status == 405);
  CHECK(parse_json(client.Get("/tokenizer_info")->body, "t").at("eos_token").as_string() == "</s>");
  CHECK(s.post("/tokenize", R"({"prompt": "</s>"})").at("tokens").items()[0].as_int() == kEos);
  CHECK(s.post("/detokenize", R"({"tokens": [72, 105]})").at("prompt").as_string() == "Hi");
  CHECK(s.post("/nowhere", "{}", 404).at("error").at("type").as_string() == "invalid_request_error");
  CHECK(s.post("/v1/completions", R"({"max_tokens": -1})", 400).at("error").at("param").as_string() == "max_tokens");
  CHECK_THAT(s.post("/v1/completions", std::string(30000, ' '), 413).at("error").at("message").as_string(),
             Contains("20000 bytes"));
  s.post("/v1/chat/completions", "{}", 400);
}

TEST_CASE("a key is asked for where there is one", "[fast]") {
  const Service s("secret");
  CHECK(s.post("/v1/completions", "{}", 401).at("error").at("type").as_string() == "authentication_error");
  auto client = s.client();
  CHECK(client.Get("/health")->status == 200);
  client.set_default_headers({{"Authorization", "Bearer secret"}});
  CHECK(client.Post("/v1/completions", R"({"prompt": "a"})", "application/json")->status == 200);
}

TEST_CASE("a streamed answer is the whole one in pieces", "[fast]") {
  const Service s;
  const std::string rest = R"("prompt": "The", "max_tokens": 30, "seed": 5, "ignore_eos": true)";
  const Json whole = s.post("/v1/completions", "{" + rest + "}");
  auto client = s.client();
  const auto result = client.Post("/v1/completions", "{" + rest + R"(, "stream": true})", "application/json");
  REQUIRE(result);
  CHECK(result->get_header_value("Content-Type") == "text/event-stream");
  CHECK(result->body.ends_with("data: [DONE]\n\n"));
  std::string text;
  std::istringstream lines(result->body);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("data: {")) {
      text += parse_json(line.substr(6), "event").at("choices").items()[0].at("text").as_string();
    }
  }
  CHECK(text == whole.at("choices").items()[0].at("text").as_string());
  CHECK(whole.at("usage").at("completion_tokens").as_int() == 30);
}

TEST_CASE("a hundred kept connections hold up nobody, and a client that leaves ends its generation", "[fast]") {
  const Service s;
  std::vector<std::unique_ptr<httplib::Client>> kept;
  for (int i = 0; i < 100; ++i) {
    kept.push_back(std::make_unique<httplib::Client>("127.0.0.1", s.server->port()));
    kept.back()->set_keep_alive(true);
    REQUIRE(kept.back()->Get("/health"));
  }
  for (const char* stream : {"true", "false"}) {
    auto client = s.client();
    client.set_read_timeout(0, 200000);
    httplib::Request request;
    request.method = "POST";
    request.path = "/v1/completions";
    request.set_header("Content-Type", "application/json");
    request.body =
        R"({"prompt": "a", "max_tokens": 2000000000, "ignore_eos": true, "stream": )" + std::string(stream) + "}";
    request.content_receiver = [](const char*, size_t, uint64_t, uint64_t) { return false; };
    client.send(request);
    client.stop();
  }
  CHECK(s.post("/v1/completions", R"({"prompt": "a"})").at("choices").items().size() == 1);
  while (!s.engine.is_idle()) { std::this_thread::yield(); }
}

}  // namespace
#endif
