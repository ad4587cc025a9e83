#include "train/training_passes.h"

#include <utility>

#include "train/gradient_exchange.h"

namespace hebb {
namespace {

Buffer upload(Stream& stream, Arena& arena, const std::vector<int32_t>& values, const char* name) {
  Buffer buffer(arena, {static_cast<int64_t>(values.size())}, DType::i32, name);
  copy_to_device(stream, buffer, values.data());
  return buffer;
}

}  // namespace

void run_pass(Model& model, Stream& stream, Arena& work, const Rows& rows, const PassTensors& tensors,
              const PassSettings& settings) {
  const bool backward = tensors.scale.defined();
  Tape tape(stream, work, backward);
  if (GradientExchange* const sends = settings.sends) {
    tape.call_when_final([sends, &stream](const Tensor& grad) { sends->gradient_is_final(stream, grad); });
  }
  Pass pass{tape, rows};
  pass.training = settings.training;
  pass.attention.random_window = settings.random_window;
  pass.seed = settings.seed;
  pass.step = settings.step;
  pass.statistics = settings.statistics;
  pass.ranks = settings.ranks;
  pass.all_rows = settings.all_rows;
  const Var hidden = model.hidden(pass, tensors.inputs);
  model.loss(pass, hidden, tensors.targets, tensors.row_loss, 1.0, tensors.scale);
  if (backward) { tape.backward(); }
}

Rows make_rows(Stream& stream, Arena& arena, const MicroBatch& rows, bool document_mask) {
  if (!document_mask) { return Rows::streams(stream, arena, rows.rows, rows.length); }
  return Rows::documents(stream, arena, rows.rows, rows.length, {rows.doc_ids.begin(), rows.doc_ids.end()});
}

void run_micro_batch(Model& model, Stream& stream, Arena& work, const MicroBatch& rows, const PassSettings& settings,
                     const Tensor& row_loss) {
  const Buffer inputs = upload(stream, work, rows.inputs, "inputs");
  const Buffer targets = upload(stream, work, rows.targets, "targets");
  run_pass(model, stream, work, make_rows(stream, work, rows, settings.document_mask), {inputs, targets, row_loss, {}},
           settings);
}

std::vector<std::string> reasons_against_graphs(const RunConfig& config, int own_lanes, const RankPasses* ranks,
                                                const Model& model, const Stream& stream) {
  if (!stream.on_gpu()) { return {"the device is not a GPU"}; }
  if (!config.train.cuda_graphs) { return {"train.cuda_graphs is false"}; }
  if (config.train.document_mask) { return {"with train.document_mask launches differ from batch to batch"}; }
  if (own_lanes > 1) { return {"the lanes of a rank have gradients in turn at several places"}; }
  return ranks != nullptr && ranks->shares_rows() ? model.needs_all_rows() : model.needs_host();
}

TrainingPasses::TrainingPasses(const RunConfig& config, int own_lanes, RankPasses* ranks, Model& model, Stream& stream,
                               Arena& state, Arena& work)
    : model_(model),
      stream_(stream),
      work_(work),
      uses_graphs_(reasons_against_graphs(config, own_lanes, ranks, model, stream).empty()),
      ranks_(ranks) {
  const int64_t rows = *config.train.micro_batch_size, length = config.train.sequence_length;
  inputs_ = Buffer(state, {rows * length}, DType::i32, "inputs");
  targets_ = Buffer(state, {rows * length}, DType::i32, "targets");
  row_loss_ = Buffer(state, {rows * length}, DType::f64, "losses of a micro-batch");
  scale_ = Buffer(state, {1}, DType::f64, "scale of losses");
  if (!config.train.document_mask) {
    rows_.emplace(Rows::streams(stream, state, rows, length));
    if (ranks != nullptr && ranks->shares_rows()) { all_rows_.emplace(ranks->whole(stream, state)); }
  }
}

void TrainingPasses::begin_step(double scale) { copy_to_device(stream_, scale_, &scale); }

void TrainingPasses::run(const MicroBatch& rows, PassSettings settings, const Tensor& row_loss) {
  HEBB_ASSERT(rows.rows * rows.length == inputs_.tensor().numel());
  copy_to_device(stream_, inputs_, rows.inputs.data());
  copy_to_device(stream_, targets_, rows.targets.data());
  const PassTensors tensors{inputs_, targets_, row_loss_, scale_};
  settings.ranks = ranks_;
  settings.all_rows = all_rows_ ? &*all_rows_ : nullptr;
  // A pass with statistics waits for the device.
  if (uses_graphs_ && settings.statistics == nullptr) {
    run_repeated(tensors, settings);
  } else if (rows_) {
    run_pass(model_, stream_, work_, *rows_, tensors, settings);
  } else {
    std::optional<AllRows> all;
    if (ranks_ != nullptr && ranks_->shares_rows()) { all.emplace(ranks_->gather(stream_, work_, rows, rows.rows)); }
    settings.all_rows = all ? &*all : nullptr;
    run_pass(model_, stream_, work_, make_rows(stream_, work_, rows, true), tensors, settings);
  }
  copy(stream_, row_loss, row_loss_);
}

/// Host code of a recorded pass does not run again: what it leaves behind are the reached parameters, and which buckets
/// of gradients the graph says are ready.
void TrainingPasses::run_repeated(const PassTensors& tensors, const PassSettings& settings) {
  HEBB_ASSERT(work_.in_use_bytes() == 0);  // a recorded pass uses its memory again without asking
  Repeated& repeated = repeated_[{settings.random_window, settings.sends != nullptr}];
  const auto reached_by = [&](const std::function<void()>& pass) {
    std::vector<Param*> before, now;
    for (const auto& p : model_.params().all()) {
      if (std::exchange(p->reached, false)) { before.push_back(p.get()); }
    }
    pass();
    for (const auto& p : model_.params().all()) {
      if (p->reached) { now.push_back(p.get()); }
    }
    for (Param* p : before) { p->reached = true; }
    return now;
  };
  const auto launch = [&] {
    repeated.graph.run(stream_, [&] { run_pass(model_, stream_, work_, *rows_, tensors, settings); });
  };
  if (!repeated.graph.is_recorded()) {
    repeated.reached = reached_by(launch);
    if (settings.sends != nullptr) { repeated.ready_buckets = settings.sends->ready_buckets(); }
  } else {
    launch();
    for (Param* p : repeated.reached) { p->reached = true; }
  }
  if (settings.sends != nullptr && repeated.graph.is_recorded()) {
    settings.sends->graph_is_launched(repeated.ready_buckets);
  }
}

}  // namespace hebb
