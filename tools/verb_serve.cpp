#include <fmt/core.h>

#include <cstdlib>
#include <ctime>
#include <memory>
#include <mutex>

#include "core/elapsed.h"
#include "core/files.h"
#include "core/progress.h"
#include "core/stop_signals.h"
#include "eval/generate.h"
#include "serve/http_server.h"
#include "tools/command_line.h"
#include "tools/options.h"
#include "tools/verbs.h"

namespace hebb {
namespace {

constexpr double kSecondsToFinish = 10;  // that running requests have after a signal
constexpr const char* kKeyVariable = "HEBB_API_KEY";

struct Options {
  std::string checkpoint, tokenizer, key_file;
  ServerOptions server;
  EngineOptions engine;
  DeviceOptions device;
  bool is_quiet = false;
};

std::string api_key(const Options& o) {
  std::string key;
  if (!o.key_file.empty()) {
    const fs::perms mode = fs::status(o.key_file).permissions();
    if (fs::exists(o.key_file) && (mode & (fs::perms::group_all | fs::perms::others_all)) != fs::perms::none) {
      throw ConfigError("--api-key-file",
                        fmt::format("{}, which others than its owner may use (mode {:03o})", o.key_file,
                                    static_cast<unsigned>(mode & fs::perms::all)),
                        "a file of its owner alone: chmod 600");
    }
    key = read_file(o.key_file);
    while (key.ends_with('\n') || key.ends_with('\r')) { key.pop_back(); }
    if (key.empty()) { throw ConfigError("--api-key-file", o.key_file + ", which holds no key", "one line"); }
  } else if (const char* value = std::getenv(kKeyVariable); value != nullptr) {
    key = value;
  }
  return key;
}

void print_request(const std::string& line) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char time[32];
  std::strftime(time, sizeof time, "%F %T", &local);
  fmt::print(stderr, "{} {}\n", time, line);
}

/// "weights 12.0 MiB, a stream 96.0 KiB and 2.0 KiB a token": all in the arithmetic's type.
std::string memory_text(ScoringModel& model) {
  constexpr int64_t kFar = int64_t{1} << 20;  // tokens, by which states of fixed size are full
  const int64_t weights = model.arena().in_use_bytes();
  const auto state = model.new_state();
  const int64_t stream = model.arena().in_use_bytes() - weights;
  const int64_t grown = model.model().state_bytes(2 * kFar) - model.model().state_bytes(kFar);  // in bf16
  const double a_token =
      static_cast<double>(grown) / kFar * static_cast<double>(dtype_bytes(model.compute().dtype)) / 2;
  return fmt::format("weights {}, a stream {}{}", format_bytes(static_cast<double>(weights)),
                     format_bytes(static_cast<double>(stream)),
                     a_token > 0 ? " and " + format_bytes(a_token) + " a token" : "");
}

int run_serve(Options o) {
  if (!can_serve()) {
    throw ConfigError("hebb serve", "a build without cpp-httplib",
                      "the packages libcpp-httplib-dev and pkg-config, and a build with -DHEBB_SERVE=ON");
  }
  o.server.api_key = api_key(o);
  ModelSource source = read_model_source(o.checkpoint);
  if (source.weights.empty()) {
    throw CheckpointError(o.checkpoint, "no weights to serve", "a configuration", "a checkpoint or run folder");
  }
  PromptRules& rules = o.server.rules;
  rules.tokenizer = find_tokenizer(source, o.tokenizer);
  rules.vocab_size = source.model.vocab_size;
  if (rules.prepend_bos && rules.tokenizer->special().bos < 0) {
    throw ConfigError("--prepend-bos", "a tokenizer without BOS", "one with BOS");
  }
  o.server.name = source.config.text_at("name");
  if (o.server.name.empty()) { o.server.name = fs::absolute(o.checkpoint).lexically_normal().filename().string(); }
  if (!o.is_quiet) { o.server.log = print_request; }
  const fs::path weights = source.weights;
  const Compute compute = set_up_compute(o.device);
  print_fallback(o.device, compute);
  const StopSignals signals;
  ScoringModel model(std::move(source), weights, compute);
  Engine engine(model, rules.tokenizer, o.engine);
  const std::string name = o.server.name, host = o.server.host;
  const std::string limits = fmt::format(
      "at most {:d} requests, {:d} streams, {}{}", o.server.max_concurrent, o.engine.max_streams,
      model.can_join() ? fmt::format("{:d} of them in a pass", o.engine.max_batch) : "one of them in a pass",
      rules.max_length ? fmt::format(", prompts with max_tokens of {:d} tokens", *rules.max_length) : "");
  HttpServer server(engine, std::move(o.server));
  fmt::print("serving {} at http://{}:{:d}/v1 ({}, {}): {}; {}\n", name,
             host.find(':') != std::string::npos ? "[" + host + "]" : host, server.port(), device_name(compute.device),
             precision_name(compute.dtype), memory_text(model), limits);
  std::fflush(stdout);
  engine.run([&] { return signals.cause() != 0; });
  server.refuse();
  const auto start = std::chrono::steady_clock::now();
  engine.run([&] { return engine.is_idle() || seconds_since(start) > kSecondsToFinish; });
  engine.end(ApiError(503, "the server stops"));
  return 0;
}

}  // namespace

void add_serve_verb(Command program) {
  Command verb = program.verb("serve", "Answers completion requests over HTTP with a trained model");
  const auto o = std::make_shared<Options>();
  verb.option("CHECKPOINT", o->checkpoint, "A checkpoint folder, or a run folder (its latest checkpoint)").required();
  verb.option("--host", o->server.host, "Address to listen at; others than loopback are reached by other machines");
  verb.option("--port", o->server.port, "Port to listen at; 0 = any, which is printed").between(0, 65535);
  verb.option("--api-key-file", o->key_file,
              "A file with the key that clients must send (default: the environment variable HEBB_API_KEY, else none)");
  verb.option("--max-length", o->server.rules.max_length, "Longest prompt with its max_tokens [tokens]").at_least(1);
  verb.option("--max-batch", o->engine.max_batch, "Choices that are computed in one pass").at_least(1);
  verb.option("--max-streams", o->engine.max_streams, "Choices that have a state in memory; others wait").at_least(1);
  verb.option("--max-concurrent", o->server.max_concurrent, "Requests that are answered at a time; others get 503")
      .at_least(1);
  verb.option("--max-payload", o->server.max_payload, "Largest body of a request [bytes]").at_least(1);
  verb.flag("--prepend-bos", o->server.rules.prepend_bos, "Put BOS in front of prompts of ids that do not have it");
  verb.flag("--freeze-fast-weights", o->engine.freeze_fast_weights, "Never update fast weights");
  verb.option("--tokenizer", o->tokenizer,
              "SentencePiece .model file, tokenizer.json or \"bytes\" (default: the run's)");
  verb.flag("--quiet", o->is_quiet, "Print no line per request to standard error");
  add_device_options(verb, o->device);
  add_graphs_option(verb, o->device);
  verb.footer(
      "hebb serve runs/quickstart --port 8000\n"
      "curl -H 'Content-Type: application/json' -d '{\"prompt\": \"In the\"}' http://127.0.0.1:8000/v1/completions\n"
      "Page: docs/verbs/serve.md");
  verb.runs([o] { return run_serve(*o); });
}

}  // namespace hebb
