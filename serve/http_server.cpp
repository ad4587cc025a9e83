#include "serve/http_server.h"

#include "core/error.h"

#if HEBB_HAVE_SERVE
#include <fmt/core.h>
#include <httplib.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>

#include "core/elapsed.h"
#include "serve/connection.h"
#endif

namespace hebb {

#if HEBB_HAVE_SERVE

namespace {

constexpr size_t kMostConnections = 1024;
constexpr int kWaitSeconds = 60;         // for a client to send or to take in more
constexpr double kSecondsToReceive = 2;  // that clients have at the end
constexpr int kLostSeconds = 30;  // without an answer of the client's machine before it is asked, and between asking

/// A thread for each connection: those that are kept open and do nothing hold up nobody.
class ConnectionThreads final : public httplib::TaskQueue {
 public:
  using Enqueued = decltype(std::declval<httplib::TaskQueue&>().enqueue({}));
  Enqueued enqueue(std::function<void()> work) override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(work));
      if (idle_ < waiting_.size() && threads_.size() < kMostConnections) {
        threads_.emplace_back([this] { serve(); });
      }
      arrival_.notify_one();
    }
    return Enqueued();
  }
  void shutdown() override {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
      arrival_.notify_all();
    }
    for (std::thread& thread : threads_) { thread.join(); }
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      ++idle_;
      arrival_.wait(lock, [&] { return ends_ || !waiting_.empty(); });
      --idle_;
      if (waiting_.empty()) { return; }
      const std::function<void()> work = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      work();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable arrival_;
  std::deque<std::function<void()>> waiting_;
  std::vector<std::thread> threads_;
  size_t idle_ = 0;
  bool ends_ = false;
};

/// One server at a port, and notice of machines that vanish.
void set_options(int socket) {
  const auto set = [&](int level, int name, int value) { ::setsockopt(socket, level, name, &value, sizeof value); };
  set(SOL_SOCKET, SO_REUSEADDR, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kLostSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kLostSeconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
}

std::string head_of(int status, const std::string& type, const std::string& more = "") {
  return fmt::format("HTTP/1.1 {:d} {}\r\nContent-Type: {}\r\nConnection: close\r\n{}\r\n", status,
                     status == 200 ? "OK" : "Error", type, more);
}

std::string event_of(const Json& json) { return "data: " + json.dump() + "\n\n"; }

void send(httplib::Response& to, int status, const Json& body) {
  to.status = status;
  to.set_content(body.dump(), "application/json");
}

Json logprobs_of(const std::vector<TokenEntry>& entries) {
  Json tokens = Json::array(), values = Json::array(), tops = Json::array(), offsets = Json::array();
  for (const TokenEntry& entry : entries) {
    tokens.push(entry.piece);
    values.push(entry.logprob ? Json(*entry.logprob) : Json());
    Json top = Json::object();
    for (const auto& [piece, value] : entry.top) { top.set(piece, value); }
    tops.push(entry.logprob ? top : Json());
    offsets.push(entry.offset);
  }
  return Json::object(
      {{"tokens", tokens}, {"token_logprobs", values}, {"top_logprobs", tops}, {"text_offset", offsets}});
}

Json choice_of(const Delta& delta, bool has_logprobs) {
  return Json::object({{"index", static_cast<int64_t>(delta.index)},
                       {"text", delta.text},
                       {"finish_reason", delta.finish_reason.empty() ? Json() : Json(delta.finish_reason)},
                       {"logprobs", has_logprobs ? logprobs_of(delta.tokens) : Json()}});
}

/// An answer to a completion request, while it grows.
struct Answer {
  CompletionRequest request;
  std::shared_ptr<Job> job;
  std::string id;
  int64_t created = 0, prompt_tokens = 0;
  std::vector<int64_t> completion_tokens;  // by choice

  Json body(Json choices) const {
    return Json::object({{"id", id},
                         {"object", "text_completion"},
                         {"created", created},
                         {"model", request.model},
                         {"choices", std::move(choices)}});
  }
  int64_t completed() const {
    int64_t sum = 0;
    for (const int64_t tokens : completion_tokens) { sum += tokens; }
    return sum;
  }
  Json usage() const {
    return Json::object({{"prompt_tokens", prompt_tokens},
                         {"completion_tokens", completed()},
                         {"total_tokens", prompt_tokens + completed()}});
  }
};

}  // namespace

struct HttpServer::Impl {
  Impl(Engine& e, ServerOptions o) : engine(e), options(std::move(o)) {}

  Engine& engine;
  ServerOptions options;
  httplib::Server server{};
  int port = 0, listener = -1;
  int64_t created = std::time(nullptr);
  std::atomic<bool> refuses = false;
  std::atomic<int64_t> running = 0, answers = 0;
  std::thread thread{};
  std::mutex counts_mutex{};
  std::map<int, int64_t> counts{};  // of answers to completion requests and errors, by status

  using Handler = std::function<void(const httplib::Request&, httplib::Response&)>;

  void log(const httplib::Request& request, int status, const std::string& rest) {
    {
      const std::lock_guard lock(counts_mutex);
      ++counts[status];
    }
    if (options.log) {
      options.log(fmt::format("{} {} {} {:d}{}", request.remote_addr, request.method, request.path, status, rest));
    }
  }

  /// The connection that this thread serves.
  Connection& connection_of(const httplib::Request& request) const {
    thread_local Connection connection;
    connection.find(port, request.remote_addr, request.remote_port);
    return connection;
  }

  bool has_key(const httplib::Request& request) const {
    if (options.api_key.empty()) { return true; }
    const std::string found = request.get_header_value("Authorization"), expected = "Bearer " + options.api_key;
    unsigned difference = found.size() != expected.size() ? 1 : 0;
    for (size_t i = 0; i < found.size() && i < expected.size(); ++i) {  // takes equally long wherever they differ
      difference |= static_cast<unsigned char>(found[i]) ^ static_cast<unsigned char>(expected[i]);
    }
    return difference == 0;
  }

  /// Errors become answers, and a key is asked for. The library takes a client that has closed its side for gone, so
  /// such a one is answered by answer_ended().
  Handler checked(const Handler& handler, bool needs_key = true) {
    return [this, handler, needs_key](const httplib::Request& request, httplib::Response& response) {
      const Connection& connection = connection_of(request);
      try {
        if (needs_key && !has_key(request)) {
          throw ApiError(401, "found no valid key, expected the header Authorization: Bearer KEY");
        }
        handler(request, response);
      } catch (const ApiError& error) {
        if (error.status == 503) { response.set_header("Retry-After", "1"); }
        send(response, error.status, error_body(error));
        log(request, error.status, std::string(": ") + error.what());
      } catch (const std::exception& error) {
        send(response, 500, error_body(ApiError(500, error.what())));
        log(request, 500, std::string(": ") + error.what());
      }
      answer_ended(connection, response);
    };
  }

  static void answer_ended(const Connection& connection, const httplib::Response& response) {
    if (!connection.has_ended() || connection.is_answered || response.body.empty()) { return; }
    const std::string more = response.status == 503 ? "Retry-After: 1\r\n" : "";
    connection.write(head_of(response.status, response.get_header_value("Content-Type"), more) + response.body);
  }

  Json model() const {
    return Json::object({{"id", options.name}, {"object", "model"}, {"created", created}, {"owned_by", "hebb"}});
  }

  /// Prometheus' text format.
  std::string metrics() {
    std::string text;
    const auto add = [&](const char* name, const char* kind, int64_t value) {
      text += fmt::format("# TYPE hebb_{} {}\nhebb_{} {:d}\n", name, kind, name, value);
    };
    const Engine::Counts now = engine.counts();
    add("requests_running", "gauge", running);
    add("streams_running", "gauge", now.streams);
    add("choices_waiting", "gauge", now.waiting);
    add("prompt_tokens_total", "counter", now.prompt_tokens);
    add("generated_tokens_total", "counter", now.generated_tokens);
    add("steps_total", "counter", now.steps);
    add("start_time_seconds", "gauge", created);
    text += "# TYPE hebb_answers_total counter\n";
    const std::lock_guard lock(counts_mutex);
    for (const auto& [status, count] : counts) {
      text += fmt::format("hebb_answers_total{{status=\"{:d}\"}} {:d}\n", status, count);
    }
    return text;
  }

  void finish(const httplib::Request& request, const Answer& answer, std::chrono::steady_clock::time_point start,
              const char* end) {
    --running;
    log(request, 200,
        fmt::format(
            " prompts {:d} tokens {:d}+{:d} {:.3f} s{}{}", answer.request.prompts.size(), answer.prompt_tokens,
            answer.completed(), seconds_since(start),
            answer.request.ignored_keys > 0 ? fmt::format(" ignored keys {:d}", answer.request.ignored_keys) : "",
            end));
  }

  void complete(const httplib::Request& request, httplib::Response& response) {
    const auto start = std::chrono::steady_clock::now();
    if (refuses) { throw ApiError(503, "the server stops"); }
    const auto answer = std::make_shared<Answer>();
    answer->request = read_completion_request(request.body, options.rules);
    if (answer->request.model.empty()) { answer->request.model = options.name; }
    if (++running > options.max_concurrent) {
      --running;
      throw ApiError(503, fmt::format("found {:d} requests that are being answered, expected fewer (--max-concurrent)",
                                      options.max_concurrent));
    }
    answer->id = fmt::format("cmpl-{:d}", ++answers);
    answer->created = std::time(nullptr);
    answer->completion_tokens.resize(answer->request.prompts.size());
    for (size_t i = 0; i < answer->request.prompts.size();
         i += static_cast<size_t>(answer->request.choices_per_prompt)) {
      const auto& prompt = answer->request.prompts[i];
      answer->prompt_tokens += std::ssize(prompt.ids) - (prompt.hides_first ? 1 : 0);
    }
    answer->job = std::make_shared<Job>(answer->request, options.rules.tokenizer);
    engine.submit(answer->job);
    if (answer->request.stream) { return stream(request, response, answer, start); }
    try {
      whole(request, response, *answer);
    } catch (...) {
      --running;
      throw;
    }
    finish(request, *answer, start, answer->job->is_cancelled() ? " client left" : "");
  }

  void whole(const httplib::Request& request, httplib::Response& response, Answer& answer) {
    Connection& connection = connection_of(request);
    std::vector<Delta> sums(answer.completion_tokens.size());
    while (!answer.job->is_complete()) {
      for (Delta& delta : answer.job->receive()) {
        Delta& sum = sums[delta.index];
        sum.index = delta.index;
        sum.text += delta.text;
        sum.tokens.insert(sum.tokens.end(), std::make_move_iterator(delta.tokens.begin()),
                          std::make_move_iterator(delta.tokens.end()));
        sum.finish_reason = delta.finish_reason;
        answer.completion_tokens[delta.index] = delta.completion_tokens;
      }
      if (!connection.is_answered && connection.has_ended()) {  // white space before JSON shows whether it still reads
        connection.is_answered = true;
        connection.write(head_of(200, "application/json") + "\n");
      }
      if (connection.has_left()) { return answer.job->cancel(); }
    }
    Json choices = Json::array();
    for (const Delta& sum : sums) { choices.push(choice_of(sum, answer.request.logprobs.has_value())); }
    Json body = answer.body(std::move(choices));
    body.set("usage", answer.usage());
    if (connection.is_answered) {
      connection.write(body.dump());
    } else {
      send(response, 200, body);
    }
  }

  /// Hands the events of an answer to `write`, which returns false where the client is gone; so does this.
  static bool write_events(Answer& answer, const Connection& connection,
                           const std::function<bool(const std::string&)>& write) {
    bool was_open = true;
    try {
      while (!answer.job->is_complete()) {
        for (const Delta& delta : answer.job->receive()) {
          answer.completion_tokens[delta.index] = delta.completion_tokens;
          Json choices = Json::array();
          choices.push(choice_of(delta, answer.request.logprobs.has_value()));
          if (!write(event_of(answer.body(std::move(choices))))) { return false; }
        }
        // A comment shows whether it still reads.
        if (std::exchange(was_open, !connection.has_ended()) && connection.has_ended() && !write(":\n\n")) {
          return false;
        }
        if (connection.has_left()) { return false; }
      }
      if (answer.request.include_usage) {
        Json body = answer.body(Json::array());
        body.set("usage", answer.usage());
        write(event_of(body));
      }
      return write("data: [DONE]\n\n");
    } catch (const ApiError& error) { return write(event_of(error_body(error))); }
  }

  void stream(const httplib::Request& request, httplib::Response& response, const std::shared_ptr<Answer>& answer,
              std::chrono::steady_clock::time_point start) {
    Connection& connection = connection_of(request);
    const auto end = [this, answer, request, start](bool is_whole) {
      if (!is_whole) { answer->job->cancel(); }
      finish(request, *answer, start, is_whole ? " streamed" : " client left");
    };
    if (connection.has_ended()) {
      connection.is_answered = true;
      const auto write = [&](const std::string& text) { return connection.write(text); };
      return end(write(head_of(200, "text/event-stream")) && write_events(*answer, connection, write));
    }
    response.set_chunked_content_provider(
        "text/event-stream",
        [answer, &connection](size_t, httplib::DataSink& sink) {
          const auto write = [&](const std::string& text) {
            if (!connection.has_ended()) { return sink.write(text.data(), text.size()); }
            return connection.write(fmt::format("{:x}\r\n{}\r\n", text.size(), text));
          };
          if (!write_events(*answer, connection, write)) { return false; }
          if (connection.has_ended()) { connection.write("0\r\n\r\n"); }
          sink.done();
          return true;
        },
        end);
  }

  void tokenizer_info(const httplib::Request&, httplib::Response& response) {
    const Tokenizer& tokenizer = *options.rules.tokenizer;
    const auto piece = [&](int32_t id) { return id < 0 ? Json() : Json(tokenizer.piece(id)); };
    send(response, 200,
         Json::object({{"tokenizer_class", tokenizer.config().type},
                       // Clients put it before texts without a context: a tokenizer that does not add it has none.
                       {"bos_token", piece(tokenizer.special().add_bos ? tokenizer.special().bos : -1)},
                       {"eos_token", piece(tokenizer.special().eos)},
                       {"pad_token", piece(tokenizer.special().pad)},
                       {"unk_token", piece(tokenizer.unknown())},
                       {"chat_template", Json()},
                       {"vocab_size", static_cast<int64_t>(tokenizer.vocab_size())}}));
  }

  void tokenize(const httplib::Request& request, httplib::Response& response) {
    const std::vector<int32_t> ids = read_tokenize_request(request.body, *options.rules.tokenizer);
    const auto& longest = options.rules.max_length;
    send(response, 200,
         Json::object({{"tokens", Json::array({ids.begin(), ids.end()})},
                       {"count", static_cast<int64_t>(ids.size())},
                       {"max_model_len", longest ? Json(*longest) : Json()}}));
  }

  void routes() {
    server.Get("/health", checked(
                              [](const auto&, auto& response) {
                                send(response, 200, Json::object({{"status", "ok"}}));
                              },
                              false));
    server.Get("/metrics", checked([this](const auto&, auto& response) {
                 response.set_content(metrics(), "text/plain; version=0.0.4");
               }));
    server.Get("/v1/models", checked([this](const auto&, auto& response) {
                 send(response, 200, Json::object({{"object", "list"}, {"data", Json::array({model()})}}));
               }));
    server.Get("/v1/models/(.+)", checked([this](const auto& request, auto& response) {
                 if (request.matches[1] != options.name) {
                   throw ApiError(404, "found no model " + request.matches[1].str() + ", expected " + options.name);
                 }
                 send(response, 200, model());
               }));
    server.Get("/tokenizer_info",
               checked([this](const auto& request, auto& response) { tokenizer_info(request, response); }));
    server.Post("/tokenize", checked([this](const auto& request, auto& response) { tokenize(request, response); }));
    server.Post("/detokenize", checked([this](const auto& request, auto& response) {
                  const Tokenizer& tokenizer = *options.rules.tokenizer;
                  send(response, 200,
                       Json::object({{"prompt", tokenizer.decode(read_detokenize_request(request.body, tokenizer))}}));
                }));
    server.Post("/v1/completions",
                checked([this](const auto& request, auto& response) { complete(request, response); }));
    server.Post("/v1/chat/completions", checked([](const auto&, auto&) {
                  throw ApiError(400, "this model has no chat template; expected POST /v1/completions");
                }));
    server.set_error_handler([this](const httplib::Request& request, httplib::Response& response) {
      if (!response.body.empty()) { return; }
      int status = response.status;
      std::string message = "no such path: " + request.path;
      for (const char* path : {"/health", "/metrics", "/v1/models", "/tokenizer_info", "/tokenize", "/detokenize",
                               "/v1/completions", "/v1/chat/completions"}) {
        if (status == 404 && request.path == path) {
          status = 405;
          message = "found the method " + request.method + ", which " + request.path + " does not have";
        }
      }
      if (status == 413) {
        message = fmt::format(
            "found a larger body, expected at most {:d} bytes (--max-payload), and at most 8192 where "
            "Content-Type is application/x-www-form-urlencoded",
            options.max_payload);
      } else if (status != 404 && status != 405) {
        message = status >= 500 ? "the request has failed" : "the request is not valid HTTP";
      }
      send(response, status, error_body(ApiError(status, message)));
      log(request, status, "");
      answer_ended(connection_of(request), response);
    });
  }
};

bool can_serve() { return true; }

HttpServer::HttpServer(Engine& engine, ServerOptions options)
    : impl_(std::make_unique<Impl>(engine, std::move(options))) {
  httplib::Server& server = impl_->server;
  server.set_tcp_nodelay(true);
  server.set_keep_alive_max_count(1000000000);
  server.set_keep_alive_timeout(60);
  server.set_read_timeout(kWaitSeconds);
  server.set_write_timeout(kWaitSeconds);
  server.set_socket_options([this](int socket) { set_options(impl_->listener = socket); });
  server.set_payload_max_length(static_cast<size_t>(impl_->options.max_payload));
  server.new_task_queue = [] { return new ConnectionThreads; };
  impl_->routes();
  const ServerOptions& o = impl_->options;
  impl_->port = static_cast<int>(o.port);
  if (o.port == 0) {
    impl_->port = server.bind_to_any_port(o.host);
  } else if (!server.bind_to_port(o.host, impl_->port)) {
    impl_->port = -1;
  }
  if (impl_->port <= 0) {
    throw ConfigError("--port", fmt::format("{}:{:d}, where this machine cannot listen", o.host, o.port),
                      "an address of this machine and a port that is free (0: any)");
  }
  // The library lets five clients wait to be let in, and a client that finds no place tries again after a second.
  ::listen(impl_->listener, kMostConnections);
  impl_->thread = std::thread([this] { impl_->server.listen_after_bind(); });
}

HttpServer::~HttpServer() {
  while (!impl_->server.is_running()) { std::this_thread::yield(); }
  impl_->server.stop();
  const auto end_all = [&](int how) { each_connection(impl_->port, [&](int fd, int) { ::shutdown(fd, how); }); };
  end_all(SHUT_RD);  // kept connections wait for another request
  // Clients take in the rest of their answers; those that take in nothing hold up no end.
  const auto start = std::chrono::steady_clock::now();
  while (impl_->running > 0 && seconds_since(start) < kSecondsToReceive) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (impl_->running > 0) { end_all(SHUT_RDWR); }
  impl_->thread.join();
}

int HttpServer::port() const { return impl_->port; }
void HttpServer::refuse() { impl_->refuses = true; }
int64_t HttpServer::running() const { return impl_->running; }

#else

struct HttpServer::Impl {};

bool can_serve() { return false; }

HttpServer::HttpServer(Engine&, ServerOptions) {
  throw ConfigError("hebb serve", "a build without cpp-httplib",
                    "the packages libcpp-httplib-dev and pkg-config, and a build with -DHEBB_SERVE=ON");
}
HttpServer::~HttpServer() = default;
int HttpServer::port() const { return 0; }
void HttpServer::refuse() {}
int64_t HttpServer::running() const { return 0; }

#endif

}  // namespace hebb
