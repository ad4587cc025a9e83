// Start-up of a run: folder, memory, weights or checkpoint, data, metrics.
#include <fmt/core.h>

#include <algorithm>

#include "core/parallel.h"
#include "core/plural.h"
#include "data/tokenizer/tokenizer.h"
#include "kernels/gemm/product_list.h"
#include "train/autotune.h"
#include "train/model_source.h"
#include "train/start_lines.h"
#include "train/trainer.h"

namespace hebb {
namespace {

/// The version, and the first ranks of several.
std::string brief_banner(const std::string& banner) {
  constexpr size_t kLines = 5;
  const size_t ranks = banner.find("\nrank ");
  return first_lines(banner + "\n", 1) +
         (ranks == std::string::npos ? "" : first_lines(banner.substr(ranks + 1) + "\n", kLines));
}

}  // namespace

Trainer::Trainer(RunConfig config, const RunOptions& options, const Ranks& ranks, Console console,
                 const std::string& banner)
    : config_(std::move(config)),
      ranks_(ranks),
      host_(ranks.communicator(), device_of(config_)),
      log_(ranks.is_first() ? std::move(console) : Console{}),
      folder_(config_, options, host_, [this](const std::string& text) { log_.say(text); }),
      skips_(config_.train.nonfinite == "stop", config_.train.max_consecutive_skips) {
  try {
    start(options, banner);
  } catch (const std::exception& error) {
    if (!folder_.discard()) { log_.error(error.what()); }
    throw;
  }
}

/// RUN/train.log of the first rank, RUN/logs/rank_00005.log of another.
void Trainer::open_log() {
  fs::path path = folder_.path() / "train.log";
  if (!ranks_.is_first()) {
    std::error_code ignored;  // opening the file says what is wrong
    fs::create_directories(folder_.path() / "logs", ignored);
    path = folder_.path() / "logs" / fmt::format("rank_{:05}.log", ranks_.rank());
  }
  log_.open(path, ranks_.rank());
  ranks_.flight().set_file(path);
}

void Trainer::start(const RunOptions& options, const std::string& banner) {
  const int wanted = config_.train.threads > 0 ? static_cast<int>(config_.train.threads) : ranks_.threads();
  if (wanted == 0 || wanted != threads()) { set_threads(wanted); }
  if (ranks_.is_first()) { open_log(); }
  if (was_complete()) {
    for (const std::string& note : folder_.notes()) { log_.say(note); }
    log_.say(fmt::format("complete: {} in {} (a larger train.steps goes on)", plural(state_.step, "step"),
                         folder_.path().string()));
    return;
  }
  log_.say_in_brief(banner, brief_banner(banner));
  log_.say("run " + config_.name + " in " + folder_.path().string());
  if (folder_.checkpoint()) {
    log_.say(fmt::format("resuming after step {:d} from {}", folder_.state().step, folder_.checkpoint()->string()));
  }
  for (const std::string& note : folder_.notes()) { log_.say(note); }
  ProductList products;
  plan_ = plan_memory(config_, ranks_, &products);
  open_data(options);  // data that is missing is found before memory is looked for
  reserve_memory(products);
  start_model(options);
  training_->read_values([&] {
    if (!ranks_.is_first()) { return; }
    folder_.keep({config_.train.checkpoint.keep, config_.train.checkpoint.keep_every});
    reporter_->open_files(folder_, state_.step, saved_step_);
    const StartText text = startup_report(config_, *training_, plan_, *loader_, state_.step, ranks_.size());
    log_.say_in_brief(text.full, text.brief);
  });
  validation_->start(reporter_->validated());
  if (!ranks_.is_first()) { open_log(); }  // all ranks have started: a start that fails leaves no file
  constexpr size_t kSources = 4;
  const std::string text = validation_->text();
  log_.say_in_brief(text, first_lines(text, kSources));
}

/// Whether there is nothing left to do: the folder has a checkpoint of the last step, and all of its validations.
bool Trainer::was_complete() {
  const bool is_last =
      folder_.checkpoint() && folder_.is_own_checkpoint() && folder_.state().step >= config_.train.steps;
  if (!is_last) { return false; }
  std::string answer;
  if (ranks_.is_first()) {
    const MetricsFile metrics(folder_.path() / "metrics.jsonl", folder_.state().step);
    const auto& all = config_.data.validation;
    const bool has_all = std::all_of(all.begin(), all.end(),
                                     [&](const ValidationConfig& v) { return metrics.validated().count(v.name) > 0; });
    answer = has_all && metrics.last_step() >= folder_.state().step ? "complete" : "";
  }
  if (host_.from_first(answer).empty()) { return false; }
  if (ranks_.is_first()) { folder_.keep({config_.train.checkpoint.keep, config_.train.checkpoint.keep_every}); }
  state_ = folder_.state();
  return true;
}

void Trainer::reserve_memory(const ProductList& products) {
  if (device_of(config_) == DeviceKind::cpu) { check_host_memory(host_, plan_.total_bytes()); }
  require_memory(plan_, device_of(config_));
  if (device_of(config_) == DeviceKind::cuda && config_.train.autotune) {
    const auto say = [this](const std::string& text) { log_.say(text); };
    log_.say(autotune(products, folder_.path() / kTunedFile, &host_, say).text());
  }
  training_ =
      std::make_unique<TrainingState>(config_, ranks_, device_of(config_), plan_.state_bytes(), plan_.work_bytes);
  reporter_ = std::make_unique<StepReporter>(run_, *training_, validation_->rows());
}

void Trainer::start_model(const RunOptions& options) {
  ParamStore& params = training_->model.params();
  if (folder_.checkpoint()) {
    const int found = load_checkpoint(*folder_.checkpoint(), training_->stream, params,
                                      {training_->exchange.get(), training_->memories.get()});
    if (training_->memories && found != training_->memories->lanes()) {
      log_.say(fmt::format("fast weights: {:d} memories in the checkpoint, {:d} lanes; lane l takes memory l mod {:d}",
                           std::max(found, 1), training_->memories->lanes(), std::max(found, 1)));
    }
    state_ = folder_.state();
    saved_step_ = folder_.is_own_checkpoint() ? state_.step : -1;
    skips_.restore(state_.skipped, state_.consecutive_skips);
    spikes_.restore(state_.spike_window);
  } else {
    training_->make_values([&] {
      params.initialize(training_->stream, config_.train.seed);
      if (!options.init_from.empty()) {
        load_weights(options.init_from, training_->stream, params);
        require_finite(find_weights(options.init_from), params);
      }
    });
    if (!options.init_from.empty()) { log_.say("weights from " + find_weights(options.init_from).string()); }
    training_->start_lanes();
  }
  state_.seed = config_.train.seed;
  state_.config_hash = config_hash(folder_.config());
}

LoaderOptions Trainer::loader_options() const {
  LoaderOptions loader;
  loader.batch_size = config_.train.batch_size;
  loader.micro_batch_size = *config_.train.micro_batch_size;
  loader.sequence_length = config_.train.sequence_length;
  loader.rank = ranks_.rank();
  loader.world = ranks_.size();
  loader.lanes = config_.train.lanes.value_or(1);
  loader.seed = config_.train.seed;
  loader.vocab_size = config_.model.vocab_size;
  loader.document_mask = config_.train.document_mask;
  if (config_.data.tokenizer.is_object()) {
    const auto tokenizer = Fields::read<TokenizerConfig>(config_.data.tokenizer, "data.tokenizer");
    loader.tokenizer_hash = tokenizer_hash(tokenizer);
  }
  return loader;
}

void Trainer::open_data(const RunOptions& options) {
  LoaderOptions loader = loader_options();
  loader_ = std::make_unique<Loader>(config_.data, loader);
  if (folder_.checkpoint()) {
    for (const std::string& change : loader_->restore(folder_.state().loader, options.allow_data_change)) {
      log_.say("the data has changed: " + change);
    }
  }
  loader.tokenizer_hash = loader_->tokenizer_hash();
  validation_ = std::make_unique<Validation>(run_, loader);
}

}  // namespace hebb
