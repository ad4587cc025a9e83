#include "train/micro_batch.h"

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

}  // namespace hebb
