#include "train/session.h"

#include <algorithm>

#include "train/trace.h"

namespace hebb {
namespace {

Stream stream_on(DeviceKind device) {
  Stream stream;
  stream.device = device;
  return stream;
}

Buffer upload(Stream& stream, Arena& arena, std::span<const int32_t> ids, const char* name) {
  Buffer buffer(arena, {static_cast<int64_t>(ids.size())}, DType::i32, name);
  copy_to_device(stream, buffer, ids.data());
  return buffer;
}

bool is_carried(const Param& p) { return p.spec.kind == ParamKind::fast; }

}  // namespace

Session::Session(ModelSource source, const fs::path& weights, const Compute& compute)
    : source_(std::move(source)), stream_(stream_on(compute.device)), arena_(compute.device, "model"), model_(source_.model) {
  model_.params().allocate(arena_, compute.dtype, false);
  load_weights(weights, stream_, model_.params());
}

std::unique_ptr<ModelState> Session::new_state() { return model_.make_state(arena_, 1); }

std::vector<double> Session::score(std::span<const int32_t> inputs, std::span<const int32_t> targets, ModelState& state,
                                   Reading reading) {
  HEBB_ASSERT(inputs.size() == targets.size());
  std::vector<double> losses(inputs.size());
  for (size_t begin = 0; begin < inputs.size(); begin += kSegment) {
    const size_t n = std::min<size_t>(kSegment, inputs.size() - begin);
    const Rows rows = Rows::streams(stream_, arena_, 1, static_cast<int64_t>(n), state.tokens);
    const Buffer tokens = upload(stream_, arena_, inputs.subspan(begin, n), "tokens");
    const Buffer wanted = upload(stream_, arena_, targets.subspan(begin, n), "targets");
    const Buffer row_loss(arena_, {static_cast<int64_t>(n)}, DType::f64, "losses");
    Tape tape(stream_, arena_, false);
    Pass pass{tape, rows};
    pass.fast_mode = reading.mode;
    pass.freeze_fast_weights = reading.freeze;
    const Var hidden = model_.hidden(pass, tokens, &state);
    model_.loss(pass, hidden, wanted, row_loss, 1.0);
    copy_to_host(stream_, losses.data() + begin, row_loss);
  }
  return losses;
}

std::vector<double> Session::read(std::span<const int32_t> tokens, ModelState& state, Reading reading) {
  HEBB_ASSERT(!tokens.empty());
  std::vector<double> logits;
  for (size_t begin = 0; begin < tokens.size(); begin += kSegment) {
    const size_t n = std::min<size_t>(kSegment, tokens.size() - begin);
    const Rows rows = Rows::streams(stream_, arena_, 1, static_cast<int64_t>(n), state.tokens);
    const Buffer ids = upload(stream_, arena_, tokens.subspan(begin, n), "tokens");
    Tape tape(stream_, arena_, false);
    Pass pass{tape, rows};
    pass.fast_mode = reading.mode;
    pass.freeze_fast_weights = reading.freeze;
    const Var hidden = model_.hidden(pass, ids, &state);
    if (begin + n == tokens.size()) {
      const int64_t d = model_.config().hidden_size;
      const Tensor last = tape.value(hidden).slice((static_cast<int64_t>(n) - 1) * d, {1, d});
      logits = to_host(stream_, tape.value(model_.logits(pass, tape.constant(last)))).values;
    }
  }
  return logits;
}

void Session::flush(ModelState& state, Reading reading) {
  if (reading.mode == FastMode::chunk && !reading.freeze) {
    model_.flush(stream_, state);
  }
}

std::vector<std::vector<char>> Session::save_fast_weights() {
  std::vector<std::vector<char>> saved;
  for (const auto& p : model_.params().all()) {
    if (is_carried(*p)) {
      saved.emplace_back(static_cast<size_t>(p->value.bytes()));
      copy_to_host(stream_, saved.back().data(), p->value);
    }
  }
  return saved;
}

void Session::restore_fast_weights(const std::vector<std::vector<char>>& saved) {
  size_t i = 0;
  for (const auto& p : model_.params().all()) {
    if (is_carried(*p)) {
      copy_to_device(stream_, p->value, saved[i++].data());
    }
  }
}

}  // namespace hebb
