// Rows of several texts that decode together, join and leave.
#include "layers/join_rows.h"

#include "layers/ops/host_values.h"
#include "tests/layers/every_layer.h"

namespace {

constexpr int64_t kVocab = 29;

/// A layer of `type` between attention with a cache that grows and one with a window.
std::string three_blocks(const LayerType& type) {
  const std::string roles = type.role == Role::mixer ? R"("mixer": "x", "ffn": "mlp")"
                            : type.role == Role::ffn ? R"("mixer": "full", "ffn": "x")"
                                                     : R"("mixer": "full", "ffn": "mlp", "memory": "x")";
  return R"({"vocab_size": 29, "hidden_size": 48, "num_layers": 3, "layers": {"x": {"type": ")" + type.name + "\", " +
         type.small + R"(},
    "mlp": {"type": "relu2", "intermediate_size": 40, "token_shift": true},
    "full": {"type": "attention", "num_heads": 3, "head_dim": 16, "rope": {"theta": 100.0}, "token_shift": true},
    "window": {"type": "attention", "num_heads": 3, "head_dim": 16, "window": 9}},
    "pattern": [{"mixer": "full", "ffn": "mlp"}, {)" +
         roles + R"(}, {"mixer": "window", "ffn": "mlp"}]})";
}

/// A text that is read `prompt` tokens at once, then one by one, from step `joins` to step `leaves`.
struct Text {
  int64_t prompt, joins, leaves;
  std::vector<int32_t> ids;
  std::unique_ptr<ModelState> state{};
  std::vector<double> logits{};  // [leaves - joins, V]
};

std::vector<Text> texts() {
  std::vector<Text> all;
  Rng rng(1, "texts");
  for (const auto& [prompt, joins, leaves] : {std::array{70, 0, 30}, {3, 0, 90}, {20, 7, 60}, {5, 40, 50}}) {
    Text text{prompt, joins, leaves, std::vector<int32_t>(static_cast<size_t>(prompt + leaves - joins))};
    for (int32_t& id : text.ids) { id = static_cast<int32_t>(rng.below(kVocab)); }
    all.push_back(std::move(text));
  }
  return all;
}

void read_prompt(TestModel& m, Text& text) {
  text.state = m.model->make_state(m.arena, 1);
  const Rows rows = Rows::streams(m.stream, m.arena, 1, text.prompt);
  const Buffer ids(m.arena, {text.prompt}, DType::i32, "tokens");
  copy_to_device(m.stream, ids, text.ids.data());
  Tape tape(m.stream, m.arena, false);
  Pass pass{tape, rows};
  m.model->hidden(pass, ids, text.state.get());
}

/// Reads the next token of each of these texts, which `state` has in this order.
void read_next(TestModel& m, ModelState& state, const std::vector<Text*>& rows) {
  Arena work(DeviceKind::cpu);
  std::vector<int32_t> tokens;
  for (Text* text : rows) {
    tokens.push_back(text->ids[static_cast<size_t>(text->prompt) + text->logits.size() / kVocab]);
  }
  const std::vector<double> logits =
      host_values(m.stream, read_token(*m.model, m.stream, work, state, tokens, {.as_graph = false}));
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto first = logits.begin() + static_cast<ptrdiff_t>(r) * kVocab;
    rows[r]->logits.insert(rows[r]->logits.end(), first, first + kVocab);
  }
}

TEST_CASE("texts that decode together give the bits that each gives alone, in every type of layer", "[fast]") {
  for (const LayerType& type : layer_types()) {
    INFO(type.name);
    for (const DType dtype : {DType::f64, DType::f32}) {
      TestModel m(three_blocks(type), dtype, 3, 0.3);
      std::vector<Text> alone = texts(), together = texts();
      if (!rows_move(*m.model->make_state(m.arena, 1))) {
        CHECK(type.role == Role::memory);  // fast weights
        continue;
      }
      for (Text& text : alone) {
        read_prompt(m, text);
        for (int64_t step = text.joins; step < text.leaves; ++step) { read_next(m, *text.state, {&text}); }
      }
      std::unique_ptr<ModelState> batch;
      std::vector<Text*> inside;
      for (int64_t step = 0; step < 90; ++step) {
        std::vector<Text*> now;
        for (Text& text : together) {
          if (step == text.joins) { read_prompt(m, text); }
          if (text.joins <= step && step < text.leaves) { now.push_back(&text); }
        }
        if (now != inside) {
          std::vector<StateRow> rows;
          for (Text* text : now) {
            const auto at = std::find(inside.begin(), inside.end(), text);
            rows.push_back(at == inside.end() ? StateRow{text->state.get()}
                                              : StateRow{batch.get(), at - inside.begin()});
          }
          batch = join_rows(m.stream, *m.model, m.arena, rows, step % 2 == 0);
          inside = now;
        }
        read_next(m, *batch, inside);
      }
      for (size_t i = 0; i < alone.size(); ++i) {
        INFO("text " << i);
        CHECK(together[i].logits == alone[i].logits);
      }
    }
  }
}

}  // namespace
