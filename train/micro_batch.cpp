#include "train/micro_batch.h"

namespace hebb {
namespace {

Buffer upload(Stream& stream, Arena& arena, const std::vector<int32_t>& values, const char* name) {
  Buffer buffer(arena, {static_cast<int64_t>(values.size())}, DType::i32, name);
  copy_to_device(stream, buffer, values.data());
  return buffer;
}

Rows make_rows(Stream& stream, Arena& work, const MicroBatch& rows, bool document_mask) {
  if (!document_mask) {
    return Rows::streams(stream, work, rows.rows, rows.length);
  }
  return Rows::documents(stream, work, rows.rows, rows.length, {rows.doc_ids.begin(), rows.doc_ids.end()});
}

}  // namespace

void run_micro_batch(Model& model, Stream& stream, Arena& work, const MicroBatch& rows, const PassSettings& settings,
                     const Tensor& row_loss, std::optional<double> grad_scale) {
  const Buffer inputs = upload(stream, work, rows.inputs, "inputs");
  const Buffer targets = upload(stream, work, rows.targets, "targets");
  const Rows structure = make_rows(stream, work, rows, settings.document_mask);
  Tape tape(stream, work, grad_scale.has_value());
  Pass pass{tape, structure};
  pass.training = settings.training;
  pass.random_window = settings.random_window;
  pass.seed = settings.seed;
  pass.step = settings.step;
  pass.statistics = settings.statistics;
  const Var hidden = model.hidden(pass, inputs);
  model.loss(pass, hidden, targets, row_loss, grad_scale.value_or(0));
  if (grad_scale) {
    tape.backward();
  }
}

}  // namespace hebb
