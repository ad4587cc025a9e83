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

/// How a stream moves fast weights.
struct StreamOptions {
  FastUpdate mode = FastUpdate::streaming;
  bool freeze = false, flush = true;
  int64_t chunk = 0;
};

/// Logits [B T V] of a stream cut into calls of the given lengths, which goes on from `state` where there is one.
inline std::vector<double> stream(TestModel& m, const TraceInput& input, const std::vector<int64_t>& lengths,
                                  StreamOptions options = {}, ModelState* state = nullptr) {
  const auto fresh = m.model->make_state(m.arena, input.rows);
  if (state == nullptr) { state = fresh.get(); }
  std::vector<double> logits = m.segments(input, lengths, state, [&](Pass& pass) {
    pass.fast.update = options.mode;
    pass.fast.freeze = options.freeze;
    pass.fast.chunk = options.chunk;
  });
  if (options.flush && options.mode == FastUpdate::streaming) { state->flush(m.stream); }
  return logits;
}

}  // namespace hebb::testing
