#pragma once
#include <functional>
#include <memory>
#include <string>

#include "serve/engine.h"

namespace hebb {

/// What a server says of its model, and what it takes.
struct ServerOptions {
  std::string host = "127.0.0.1";
  int64_t port = 8000;  // 0: any
  std::string name;     // of the model
  std::string api_key;  // empty: none is asked for
  int64_t max_concurrent = 64;
  int64_t max_payload = int64_t{32} << 20;  // [bytes]
  PromptRules rules;
  std::function<void(const std::string& line)> log;  // a line per request, from any thread
};

/// Whether this build can serve. Without the HTTP library it cannot.
bool can_serve();

/// The completions protocol over HTTP (docs/verbs/serve.md), on threads of its own; the engine runs elsewhere.
class HttpServer {
 public:
  /// Listens. Errors: ConfigError where the address cannot be taken, and in a build without the HTTP library.
  HttpServer(Engine& engine, ServerOptions options);
  /// Ends all connections.
  ~HttpServer();

  int port() const;
  /// From now on new completions are refused with 503.
  void refuse();
  /// Requests that are being answered.
  int64_t running() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hebb
