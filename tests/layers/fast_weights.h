#pragma once
// Fast weights of a model, and streams that move them.
#include "tests/layers/properties.h"

namespace hebb::testing {

/// A model of blocks with a memory before a mixer that sees only its own token.
inline std::string memory_model(const std::string& memory, int blocks = 1) {
  return R"({"vocab_size": 19, "hidden_size": 10, "num_layers": )" + std::to_string(blocks) + R"(, "norm_eps": 1e-5,
    "layers": {"a": {"type": "attention", "num_heads": 1, "head_dim": 4, "window": 1},
               "f": {"type": "swiglu", "intermediate_size": 7}, "m": {)" +
         memory + R"(}},
    "pattern": [{"memory": "m", "mixer": "a", "ffn": "f"}]})";
}

/// Tokens [first, first + count) of every row.
inline TraceInput part(const TraceInput& input, int64_t first, int64_t count) {
  TraceInput out;
  out.rows = input.rows;
  out.length = count;
  for (int64_t b = 0; b < input.rows; ++b) {
    for (int64_t t = first; t < first + count; ++t) {
      out.inputs.push_back(input.inputs[static_cast<size_t>(b * input.length + t)]);
      out.targets.push_back(input.targets[static_cast<size_t>(b * input.length + t)]);
    }
  }
  return out;
}

/// How a stream moves fast weights.
struct StreamOptions {
  FastUpdate mode = FastUpdate::streaming;
  bool freeze = false, flush = true;
  int64_t chunk = 0;
};

/// Logits [B T V] of a stream that goes on from `state`, cut into calls of the given lengths, which start at
/// `position`.
inline std::vector<double> stream(TestModel& m, const TraceInput& input, const std::vector<int64_t>& lengths,
                                  StreamOptions options, ModelState& state, int64_t position = 0) {
  const int64_t vocab = m.config.vocab_size, batch = input.rows;
  std::vector<double> logits(static_cast<size_t>(batch * input.length * vocab));
  int64_t begin = 0;
  for (const int64_t n : lengths) {
    const TraceInput piece = part(input, begin, n);
    const Rows rows = Rows::streams(m.stream, m.arena, batch, n, position + begin);
    const std::vector<double> values = m.logits_of(rows, piece.inputs, &state, [&](Pass& pass) {
      pass.fast.update = options.mode;
      pass.fast.freeze = options.freeze;
      pass.fast.chunk = options.chunk;
    });
    for (int64_t b = 0; b < batch; ++b) {
      std::copy_n(values.begin() + b * n * vocab, n * vocab, logits.begin() + (b * input.length + begin) * vocab);
    }
    begin += n;
  }
  REQUIRE(begin == input.length);
  if (options.flush && options.mode == FastUpdate::streaming) { state.flush(m.stream); }
  return logits;
}

/// The same from the start of a stream.
inline std::vector<double> stream(TestModel& m, const TraceInput& input, const std::vector<int64_t>& lengths,
                                  StreamOptions options = {}) {
  const auto state = m.model->make_state(m.arena, input.rows);
  return stream(m, input, lengths, options, *state);
}

}  // namespace hebb::testing
