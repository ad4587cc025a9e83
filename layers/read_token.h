#pragma once
#include <span>
#include <vector>

#include "core/launch_graph.h"
#include "layers/layer.h"

namespace hebb {

class Model;
struct ModelState;

/// The pass that reads one token of each row of a ModelState, as far as it can be repeated: what its launches read and
/// write outside of states and weights, and the graph of them.
struct TokenPass {
  Buffer tokens, starts;         // [B] i32, [B, 1] i32: Rows::doc_start()
  Buffer logits;                 // [B, V]
  std::vector<int64_t> depends;  // what the launches of `graph` depend on besides device memory
  LaunchGraph graph;
};

/// How tokens are read.
struct ReadTokenOptions {
  FastWeightControl fast{};
  AttentionControl attention{};
  bool as_graph = true;  // on a GPU: launch a recorded graph where no layer's host code decides (LayerState::launches)
};

/// Reads the next token of every row, tokens [B] of ids inside the vocabulary, and advances `state`. Returns the logits
/// [B, V] behind it on the device, fp32 for bf16; the next call overwrites them. The pass takes its memory from `work`,
/// which serves nothing else and is empty before and after.
Tensor read_token(Model& model, Stream& stream, Arena& work, ModelState& state, std::span<const int32_t> tokens,
                  const ReadTokenOptions& options);

}  // namespace hebb
