#include "layers/join_rows.h"

#include <algorithm>

namespace hebb {
namespace {

int64_t tokens_of(const StateRow& from) {
  const std::vector<int64_t>& positions = from.state->positions;
  return positions.empty() ? from.state->tokens : positions[static_cast<size_t>(from.row)];
}

}  // namespace

bool rows_move(const ModelState& state) {
  bool all = true;
  state.each([&](const LayerState& layer) { all = all && layer.rows_move(); });
  return all;
}

std::unique_ptr<ModelState> join_rows(Stream& stream, const Model& model, Arena& arena, std::span<const StateRow> rows,
                                      bool uses_up) {
  std::unique_ptr<ModelState> joined(new ModelState{&arena, std::ssize(rows)});
  for (size_t i = 0; i < model.blocks().size(); ++i) {
    const auto join = [&](const Layer* layer, std::unique_ptr<LayerState> ModelState::Block::*part) {
      std::unique_ptr<LayerState> state =
          layer != nullptr ? layer->make_state(arena, joined->rows, model.params().dtype()) : nullptr;
      for (size_t r = 0; state != nullptr && r < rows.size(); ++r) {
        state->take_row(stream, static_cast<int64_t>(r), *(rows[r].state->blocks[i].*part), rows[r].row,
                        tokens_of(rows[r]));
      }
      for (const StateRow& from : rows) {
        if (uses_up) { (from.state->blocks[i].*part).reset(); }
      }
      return state;
    };
    const Model::Block& block = model.blocks()[i];
    joined->blocks.push_back({join(block.memory.get(), &ModelState::Block::memory),
                              join(block.mixer.get(), &ModelState::Block::mixer),
                              join(block.ffn.get(), &ModelState::Block::ffn)});
  }
  for (const StateRow& from : rows) { joined->positions.push_back(tokens_of(from)); }
  joined->tokens = *std::max_element(joined->positions.begin(), joined->positions.end());
  return joined;
}

}  // namespace hebb
