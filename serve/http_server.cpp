#include "serve/http_server.h"

#include "core/error.h"

#if HEBB_HAVE_SERVE
#include <fmt/core.h>
#include <httplib.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>

#include "core/elapsed.h"
#endif

namespace hebb {

#if HEBB_HAVE_SERVE

namespace {

constexpr int kLongestDescriptor = 4096;
constexpr size_t kMostConnections = 1024;

/// Calls f(descriptor, port of the peer) for the connections of this process to its own port.
template <class F> void each_connection(int own_port, F&& f) {
  const auto port_of = [](int fd, auto get) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    if (get(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) { return -1; }
    return static_cast<int>(ntohs(address.ss_family == AF_INET6
                                      ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                                      : reinterpret_cast<const sockaddr_in*>(&address)->sin_port));
  };
  for (int fd = 0; fd < kLongestDescriptor; ++fd) {
    if (port_of(fd, ::getsockname) != own_port) { continue; }
    if (const int peer = port_of(fd, ::getpeername); peer >= 0) { f(fd, peer); }
  }
}

/// Whether the client at the other end of a connection has closed it.
bool has_left(int fd) {
  pollfd entry{fd, POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

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

/// The answer to a completion request as it grows.
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
  int port = 0;
  int64_t created = std::time(nullptr);
  std::atomic<bool> refuses = false;
  std::atomic<int64_t> running = 0, answers = 0;
  std::thread thread{};

  using Handler = std::function<void(const httplib::Request&, httplib::Response&)>;

  void log(const httplib::Request& request, int status, const std::string& rest) {
    if (options.log) {
      options.log(fmt::format("{} {} {} {:d}{}", request.remote_addr, request.method, request.path, status, rest));
    }
  }

  /// Errors become answers, and a key is asked for.
  Handler checked(const Handler& handler, bool needs_key = true) {
    return [this, handler, needs_key](const httplib::Request& request, httplib::Response& response) {
      try {
        if (needs_key && !options.api_key.empty() &&
            request.get_header_value("Authorization") != "Bearer " + options.api_key) {
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
    };
  }

  Json model() const {
    return Json::object({{"id", options.name}, {"object", "model"}, {"created", created}, {"owned_by", "hebb"}});
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
    for (const auto& prompt : answer->request.prompts) {
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
    int connection = -1;
    each_connection(port, [&](int fd, int peer) { connection = peer == request.remote_port ? fd : connection; });
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
      if (connection >= 0 && has_left(connection)) { return answer.job->cancel(); }
    }
    Json choices = Json::array();
    for (const Delta& sum : sums) { choices.push(choice_of(sum, answer.request.logprobs.has_value())); }
    Json body = answer.body(std::move(choices));
    body.set("usage", answer.usage());
    send(response, 200, body);
  }

  void stream(const httplib::Request& request, httplib::Response& response, const std::shared_ptr<Answer>& answer,
              std::chrono::steady_clock::time_point start) {
    const auto event = [](const Json& json) { return "data: " + json.dump() + "\n\n"; };
    response.set_chunked_content_provider(
        "text/event-stream",
        [answer, event](size_t, httplib::DataSink& sink) {
          const auto write = [&](const std::string& text) { return sink.write(text.data(), text.size()); };
          try {
            for (const Delta& delta : answer->job->receive()) {
              answer->completion_tokens[delta.index] = delta.completion_tokens;
              Json choices = Json::array();
              choices.push(choice_of(delta, answer->request.logprobs.has_value()));
              if (!write(event(answer->body(std::move(choices))))) { return false; }
            }
            if (!answer->job->is_complete()) { return sink.is_writable(); }
            if (answer->request.include_usage) {
              Json body = answer->body(Json::array());
              body.set("usage", answer->usage());
              write(event(body));
            }
            write("data: [DONE]\n\n");
          } catch (const ApiError& error) { write(event(error_body(error))); }
          sink.done();
          return true;
        },
        [this, answer, request, start](bool is_whole) {
          if (!is_whole) { answer->job->cancel(); }
          finish(request, *answer, start, is_whole ? " streamed" : " client left");
        });
  }

  void tokenizer_info(const httplib::Request&, httplib::Response& response) {
    const Tokenizer& tokenizer = *options.rules.tokenizer;
    const auto piece = [&](int32_t id) { return id < 0 ? Json() : Json(tokenizer.piece(id)); };
    send(response, 200,
         Json::object({{"tokenizer_class", tokenizer.config().type},
                       {"bos_token", piece(tokenizer.special().bos)},
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
      for (const char* path : {"/health", "/v1/models", "/tokenizer_info", "/tokenize", "/detokenize",
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
  server.set_read_timeout(60);
  server.set_write_timeout(600);
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
  impl_->thread = std::thread([this] { impl_->server.listen_after_bind(); });
}

HttpServer::~HttpServer() {
  while (!impl_->server.is_running()) { std::this_thread::yield(); }
  impl_->server.stop();
  // Kept connections wait for another request.
  each_connection(impl_->port, [](int fd, int) { ::shutdown(fd, SHUT_RD); });
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
