#include "inspect/trace.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "layers/ops/host_values.h"

namespace hebb {
namespace {

Buffer upload_ids(Stream& stream, Arena& arena, const std::vector<int64_t>& ids, int64_t vocab, bool ignore,
                  const std::string& name) {
  std::vector<int32_t> narrow(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool ignored = ignore && ids[i] == -100;
    if (!ignored && (ids[i] < 0 || ids[i] >= vocab)) {
      throw DataError(fmt::format("{}[{:d}]", name, i), "token id outside the vocabulary", std::to_string(ids[i]),
                      fmt::format("0 to {:d}{}", vocab - 1, ignore ? " or -100" : ""));
    }
    narrow[i] = static_cast<int32_t>(ids[i]);
  }
  Buffer buffer(arena, {static_cast<int64_t>(ids.size())}, DType::i32, name);
  copy_to_device(stream, buffer, narrow.data());
  return buffer;
}

double mean_loss(Stream& stream, const Tensor& row_loss, double scale) {
  std::vector<double> losses(static_cast<size_t>(row_loss.numel()));
  copy_to_host(stream, losses.data(), row_loss);
  return std::accumulate(losses.begin(), losses.end(), 0.0) * scale;
}

}  // namespace

TraceTensor to_host(Stream& stream, const Tensor& tensor) { return {tensor.shape, host_values(stream, tensor)}; }

TraceOutput trace(Model& model, Stream& stream, Arena& arena, const TraceInput& input, const TraceOptions& options) {
  const int64_t vocab = model.config().vocab_size;
  TraceOutput out;
  out.has_loss = !input.targets.empty();
  const Buffer tokens = upload_ids(stream, arena, input.inputs, vocab, false, "inputs");
  const Rows rows = input.doc_ids.empty() ? Rows::streams(stream, arena, input.rows, input.length)
                                          : Rows::documents(stream, arena, input.rows, input.length, input.doc_ids);
  Inspector inspector;
  inspector.recording = options.inside;
  inspector.forced = options.forced;
  const bool recording = options.grads && out.has_loss;
  Tape tape(stream, arena, recording);
  Pass pass{tape, rows};
  pass.training = options.training;
  pass.seed = options.seed;
  pass.step = options.step;
  pass.inspector = &inspector;
  if (recording) { model.params().zero_grads(stream); }
  const Var hidden = model.hidden(pass, tokens);
  out.logits = to_host(stream, tape.value(model.logits(pass, hidden)));
  out.logits.shape = {input.rows, input.length, vocab};
  if (out.has_loss) {
    const auto valid = std::count_if(input.targets.begin(), input.targets.end(), [](int64_t t) { return t != -100; });
    const double scale = valid > 0 ? 1.0 / static_cast<double>(valid) : 0.0;
    const Buffer targets = upload_ids(stream, arena, input.targets, vocab, true, "targets");
    const Buffer row_loss(arena, {input.rows * input.length}, DType::f64, "loss");
    model.loss(pass, hidden, targets, row_loss, scale);
    out.loss = mean_loss(stream, row_loss, scale);
    if (recording) { tape.backward(); }
  }
  for (const auto& p : model.params().all()) {
    if (recording && p->trained() && p->reached) { out.grads[p->name()] = to_host(stream, p->grad); }
    if (options.training && p->spec.kind == ParamKind::fast) { out.after[p->name()] = to_host(stream, p->value); }
  }
  out.inside = std::move(inspector.records);
  return out;
}

}  // namespace hebb
