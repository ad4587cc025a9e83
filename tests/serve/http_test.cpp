// The server over loopback.
#if HEBB_HAVE_SERVE
#include <httplib.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "core/utf8.h"
#include "serve/http_server.h"
#include "tests/eval/text_model.h"

namespace {

/// A server with an engine on a thread of its own. `change` may replace its options.
struct Service {
  using Change = std::function<void(ServerOptions&)>;
  explicit Service(const Change& change = {}) : Service(std::make_shared<const TextModel>(byte_model(false)), change) {}
  explicit Service(std::shared_ptr<const TextModel> text_model, const Change& change = {})
      : files(std::move(text_model)), model(files->load()), engine(model, files->tokenizer, {}) {
    ServerOptions options;
    options.port = 0;
    options.name = "small";
    options.max_payload = 20000;
    options.rules = {files->tokenizer, kByteVocab, std::nullopt, false};
    if (change) { change(options); }
    server = std::make_unique<HttpServer>(engine, options);
    thread = std::thread([this] { engine.run([this] { return ends.load(); }); });
  }
  ~Service() {
    end();
    server.reset();
  }
  /// The engine takes no more requests; the server does.
  void end() {
    ends = true;
    if (thread.joinable()) { thread.join(); }
    engine.end(ApiError(503, "end"));
  }
  httplib::Client client() const {
    httplib::Client made("127.0.0.1", server->port());
    made.set_read_timeout(600);
    made.set_write_timeout(600);
    return made;
  }
  Json post(const std::string& path, const std::string& body, int status = 200) const {
    auto c = client();
    const auto result = c.Post(path, body, "application/json");
    REQUIRE(result);
    CHECK(result->status == status);
    return parse_json(result->body, path);
  }

  std::shared_ptr<const TextModel> files;
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

TEST_CASE("clients that come at the same time all have room to wait for their connections", "[fast]") {
  const Service s;
  int room = 0;  // of the socket that listens at the server's port
  for (int fd = 0; fd < 1024; ++fd) {
    int listens = 0;
    socklen_t size = sizeof listens;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) { continue; }
    sockaddr_in own{};
    size = sizeof own;
    tcp_info info{};
    socklen_t info_size = sizeof info;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0 && ntohs(own.sin_port) == s.server->port() &&
        ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &info_size) == 0) {
      room = static_cast<int>(info.tcpi_sacked);
    }
  }
  int most = 0;
  std::ifstream("/proc/sys/net/core/somaxconn") >> most;
  CHECK(room == std::min(1024, most));
}

TEST_CASE("a key is asked for where there is one", "[fast]") {
  const Service s([](ServerOptions& options) { options.api_key = "secret"; });
  CHECK(s.post("/v1/completions", "{}", 401).at("error").at("type").as_string() == "authentication_error");
  auto client = s.client();
  CHECK(client.Get("/health")->status == 200);
  for (const char* other : {"", "secret", "Bearer", "Bearer ", "Bearer secre", "Bearer secret2", "Bearer Secret"}) {
    client.set_default_headers({{"Authorization", other}});
    CHECK(client.Post("/v1/completions", R"({"prompt": "a"})", "application/json")->status == 401);
  }
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

TEST_CASE("usage counts a prompt once and every token that was generated", "[fast]") {
  const Service s;
  const auto check = [](const Json& usage, int64_t prompt, int64_t completion) {
    CHECK(usage.at("prompt_tokens").as_int() == prompt);
    CHECK(usage.at("completion_tokens").as_int() == completion);
    CHECK(usage.at("total_tokens").as_int() == prompt + completion);
  };
  const std::string body = R"({"prompt": ["abc", "de"], "n": 3, "max_tokens": 4, "ignore_eos": true)";
  check(s.post("/v1/completions", body + "}").at("usage"), 5, 24);
  const auto events = [&](const std::string& more) {
    auto client = s.client();
    const auto result = client.Post("/v1/completions", body + more + "}", "application/json");
    std::vector<Json> found;
    std::istringstream lines(result->body);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("data: {")) { found.push_back(parse_json(line.substr(6), "event")); }
    }
    return found;
  };
  const std::vector<Json> with = events(R"(, "stream": true, "stream_options": {"include_usage": true})");
  CHECK(with.back().at("choices").items().empty());
  check(with.back().at("usage"), 5, 24);
  const std::vector<Json> plain = events(R"(, "stream": true)");
  CHECK_FALSE(plain.back().at("choices").items().empty());
  CHECK(plain.back().find("usage") == nullptr);
  const Service hidden([](ServerOptions& options) { options.rules.prepend_bos = true; });
  check(hidden.post("/v1/completions", R"({"prompt": [97, 98], "max_tokens": 0})").at("usage"), 2, 0);
}

/// Sends a completion request, and hands each piece of the answer to `receive` until it returns false.
void stream_from(const Service& s, const std::string& body, const std::function<bool(const std::string&)>& receive) {
  auto client = s.client();
  httplib::Request request;
  request.method = "POST";
  request.path = "/v1/completions";
  request.set_header("Content-Type", "application/json");
  request.body = body;
  request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
    return receive(std::string(data, size));
  };
  client.send(request);
  client.stop();
}

constexpr const char* kEndlessStream =
    R"({"prompt": "a", "max_tokens": 2000000000, "ignore_eos": true, "stream": true})";

TEST_CASE("a server that is full says when to come again", "[fast]") {
  const Service s([](ServerOptions& options) { options.max_concurrent = 1; });
  stream_from(s, kEndlessStream, [&](const std::string&) {
    auto client = s.client();
    const auto other = client.Post("/v1/completions", R"({"prompt": "a"})", "application/json");
    REQUIRE(other);
    CHECK(other->status == 503);
    CHECK(other->get_header_value("Retry-After") == "1");
    std::string counts;
    do { counts = client.Get("/metrics")->body; } while (counts.find("hebb_streams_running 1\n") == std::string::npos);
    CHECK_THAT(counts, Contains("hebb_requests_running 1\n") && Contains("hebb_choices_waiting 0\n"));
    CHECK(parse_json(other->body, "b").at("error").at("type").as_string() == "server_error");
    return false;
  });
  while (s.server->running() > 0) { std::this_thread::yield(); }
  s.post("/v1/completions", R"({"prompt": "a"})");
}

TEST_CASE("a request that fails makes room for the next one", "[fast]") {
  Service s([](ServerOptions& options) { options.max_concurrent = 1; });
  s.end();
  for (int i = 0; i < 3; ++i) {
    const Json answer = s.post("/v1/completions", R"({"prompt": "a"})", 503);
    CHECK(answer.at("error").at("message").as_string() == "end");
  }
  CHECK(s.server->running() == 0);
}

TEST_CASE("characters of several tokens come whole, and what is left of one as U+FFFD", "[fast]") {
  const BigramModel::Table table{{{'a', 0xC3}, 50.0},  {{0xC3, 0xA9}, 50.0}, {{0xA9, 0xE2}, 50.0},
                                 {{0xE2, 0x82}, 50.0}, {{0x82, 0xAC}, 50.0}, {{0xAC, 'a'}, 50.0}};
  const Service s(std::make_shared<const BigramModel>(table));
  for (const auto& [tokens, expected] :
       {std::pair{6, "\u00e9\u20aca"}, {5, "\u00e9\u20ac"}, {4, "\u00e9\ufffd\ufffd"}, {1, "\ufffd"}}) {
    std::string text;
    std::string body = R"({"prompt": "a", "temperature": 0, "stream": true, "max_tokens": )" + std::to_string(tokens);
    stream_from(s, body + "}", [&, all = std::string()](const std::string& more) mutable {
      all += more;
      for (size_t end = 0; (end = all.find("\n\n")) != std::string::npos; all.erase(0, end + 2)) {
        if (!all.starts_with("data: {")) { continue; }
        const std::string piece =
            parse_json(all.substr(6, end - 6), "event").at("choices").items()[0].at("text").as_string();
        CHECK(utf8_first_invalid(piece) == std::string::npos);
        text += piece;
      }
      return true;
    });
    CHECK(text == expected);
  }
}

/// A client that sends what it is told, when it is told.
class RawClient {
 public:
  explicit RawClient(const Service& s) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(s.server->port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  }
  ~RawClient() { ::close(fd_); }
  void send(const std::string& text) {
    REQUIRE(::send(fd_, text.data(), text.size(), MSG_NOSIGNAL) == std::ssize(text));
  }
  void send_request(const std::string& method, const std::string& path, const std::string& body) {
    send(method + " " + path + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  void end_sending() { ::shutdown(fd_, SHUT_WR); }
  /// All until the server closes.
  std::string read_all() {
    std::string all;
    char part[4096];
    for (ssize_t n = 0; (n = ::recv(fd_, part, sizeof part, 0)) > 0;) { all.append(part, static_cast<size_t>(n)); }
    return all;
  }

 private:
  int fd_;
};

Json body_of(const std::string& answer) { return parse_json(answer.substr(answer.find("\r\n\r\n") + 4), "answer"); }

TEST_CASE("a client that closes its side alone gets its answer", "[fast]") {
  const Service s;
  const std::string rest = R"("prompt": "The", "max_tokens": 300, "seed": 5, "ignore_eos": true)";
  const Json whole = s.post("/v1/completions", "{" + rest + "}");
  const auto ask = [&](const std::string& method, const std::string& path, const std::string& body) {
    RawClient client(s);
    client.send_request(method, path, body);
    client.end_sending();
    return client.read_all();
  };
  CHECK(body_of(ask("POST", "/v1/completions", "{" + rest + "}")).at("choices") == whole.at("choices"));
  const std::string streamed = ask("POST", "/v1/completions", "{" + rest + R"(, "stream": true})");
  CHECK(streamed.find("data: [DONE]\n\n") != std::string::npos);
  CHECK(streamed.find(R"("finish_reason":"length")") != std::string::npos);
  CHECK(body_of(ask("POST", "/v1/completions", "[")).at("error").at("type").as_string() == "invalid_request_error");
  CHECK(body_of(ask("GET", "/health", "")).at("status").as_string() == "ok");
  CHECK_THAT(ask("GET", "/nowhere", ""), Catch::StartsWith("HTTP/1.1 404") && Contains("no such path"));
}

TEST_CASE("clients that send or read slowly hold up nobody", "[fast]") {
  const Service s;
  const std::string body = R"({"prompt": "a", "max_tokens": 2})";
  RawClient sends(s), reads(s);
  sends.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " +
             std::to_string(body.size()) + "\r\n\r\n" + body.substr(0, 5));
  reads.send_request("POST", "/v1/completions", kEndlessStream);
  while (s.engine.counts().generated_tokens < 1000) { std::this_thread::yield(); }
  for (int i = 0; i < 3; ++i) { CHECK(s.post("/v1/completions", body).at("usage").at("completion_tokens") == Json(2)); }
  CHECK(s.engine.counts().streams >= 1);
  sends.send(body.substr(5));
  CHECK(body_of(sends.read_all()).at("usage").at("completion_tokens") == Json(2));
}

TEST_CASE("a port that another server has is refused", "[fast]") {
  Service s;
  ServerOptions options;
  options.port = s.server->port();
  CHECK_THROWS_WITH(HttpServer(s.engine, options), Contains("cannot listen"));
  s.post("/v1/completions", R"({"prompt": "a"})");
}

TEST_CASE("counts are those of what was answered", "[fast]") {
  const Service s;
  s.post("/v1/completions", R"({"prompt": "abc", "max_tokens": 5, "ignore_eos": true})");
  s.post("/v1/completions", "[", 400);
  auto client = s.client();
  std::string text;
  do { text = client.Get("/metrics")->body; } while (text.find("hebb_streams_running 0\n") == std::string::npos);
  CHECK_THAT(text, Contains("# TYPE hebb_generated_tokens_total counter\nhebb_generated_tokens_total 5\n"));
  CHECK_THAT(text, Contains("hebb_prompt_tokens_total 3\n"));
  CHECK_THAT(text, Contains("hebb_answers_total{status=\"200\"} 1\n"));
  CHECK_THAT(text, Contains("hebb_answers_total{status=\"400\"} 1\n"));
}

TEST_CASE("a hundred kept connections hold up nobody, and a client that leaves ends its generation", "[fast]") {
  const Service s;
  std::vector<std::unique_ptr<httplib::Client>> kept;
  for (int i = 0; i < 100; ++i) {
    kept.push_back(std::make_unique<httplib::Client>(s.client()));
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
