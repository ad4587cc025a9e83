#pragma once
// What a layer is: a configuration that declares itself (LayerConfig) and makes a Layer, which
// declares parameters when built and runs forward passes on a tape. One Layer::forward serves
// training, scoring, prefill and decoding: with a LayerState it continues from, and advances, that
// state, whatever the number of tokens.
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/fields.h"
#include "core/params.h"
#include "core/tape.h"
#include "kernels/attention/visible_keys.h"
#include "kernels/rope/rope.h"
#include "layers/all_rows.h"
#include "layers/attention_control.h"
#include "layers/fast/control.h"
#include "layers/inspector.h"
#include "layers/rows.h"
#include "layers/statistics.h"

namespace hebb {

enum class Role { mixer, memory, ffn };

/// Intervals of keys, one a query: lo, hi [B, T] i32.
struct KeyIntervals {
  Var lo, hi;
};

/// Values of a pass that more than one layer reads: what layers hand to later layers, and functions of the rows that
/// are made once. No Var: not there yet.
struct SharedValues {
  struct Visible {
    KeyRange range;
    int64_t offset;
    KeyIntervals keys;
  };
  struct Angles {
    RopeSpec spec;
    Var table;
  };
  Var embeddings{};  // h_0 [B T, d], normed
  Var eda_score{};   // [B T], of the last HAM layer with EDA
  /// v_first [B T, C] by group of value residuals: of the group's first block, and of the embeddings.
  std::map<std::string, Var> first_values{}, embedding_values{};
  std::vector<Visible> visible{};
  std::vector<Angles> angles{};

  /// All that is there, in a fixed order.
  std::vector<Var> all() const;
};

/// Everything that one forward pass shares.
struct Pass {
  Tape& tape;
  const Rows& rows;
  bool training = false;  // training mode: random window, training-time quantizers, fast-weight updates kept
  uint64_t seed = 0;      // train.seed
  int64_t step = 0;       // optimizer step index
  AttentionControl attention{};
  FastWeightControl fast{};
  Inspector* inspector = nullptr;
  Statistics* statistics = nullptr;   // non-null on steps that are logged
  RankExchange* ranks = nullptr;      // several ranks train
  const AllRows* all_rows = nullptr;  // for layers with one memory for the rows of all ranks
  SharedValues shared{};

  Stream& stream() const { return tape.stream(); }
  int64_t batch() const { return rows.batch(); }
  int64_t length() const { return rows.length(); }
  int64_t tokens() const { return rows.tokens(); }
  /// Whether layers add to inspector->records, and to *statistics. A second run of recomputation does neither again.
  bool records() const { return inspector != nullptr && inspector->recording && !tape.recomputing(); }
  bool measures() const { return statistics != nullptr && !tape.recomputing() && !tape.stream().counting(); }
  /// A parameter as a tape value.
  Var param(Param& p) const { return tape.leaf(p.value, p.grad, &p.reached, p.copy); }
  /// The same; no Var without a parameter.
  Var param(Param* p) const { return p != nullptr ? param(*p) : Var{}; }
};

/// The next token of every row: its position in the row's one document (where they differ, the largest), and how it is
/// read.
struct NextToken {
  int64_t position = 0;
  FastWeightControl fast{};
};

/// What a layer carries from one segment or token to the next, for a fixed batch of rows. Memory
/// comes from the arena given at construction.
struct LayerState {
  virtual ~LayerState() = default;
  /// Whether it belongs to what the model learns while it reads, and so stays when another text begins.
  virtual bool stays_between_texts() const { return false; }
  /// End of a segment in FastUpdate::streaming: uses up what is queued.
  virtual void flush(Stream&) {}

  /// What the launches of a pass that reads one token of each row depend on besides device memory. While it stays as it
  /// is, a recorded graph may stand for the pass (layers/read_token.h). Empty: the host decides anew in each pass.
  virtual std::optional<int64_t> launches(const NextToken&) const { return std::nullopt; }
  /// Takes note of a token that a recorded graph has read.
  virtual void count_token(const NextToken&) {}

  /// Whether rows of several states of a layer can stand in one, each at a position of its own (layers/join_rows.h).
  virtual bool rows_move() const { return false; }
  /// Row `row` becomes row `from_row` of `from`, a state of the same layer, which has seen the `tokens` first tokens of
  /// one document. From then on all rows read one token at a time. Only where rows_move().
  virtual void take_row(Stream&, int64_t row, const LayerState& from, int64_t from_row, int64_t tokens) {}
};

/// A state that the host knows nothing of: launches depend on device memory alone.
struct DeviceState : LayerState {
  std::optional<int64_t> launches(const NextToken&) const override { return 0; }
  /// All that is carried, [B, ...] each.
  virtual std::vector<Tensor> by_row() const = 0;
  bool rows_move() const override { return true; }
  void take_row(Stream& stream, int64_t row, const LayerState& from, int64_t from_row, int64_t) override {
    copy_rows(stream, by_row(), row, static_cast<const DeviceState&>(from).by_row(), from_row);
  }
};

/// One layer of one block.
class Layer {
 public:
  virtual ~Layer() = default;

  /// x [B T, d]: the block's normed input (memory: the residual stream itself). Returns [B T, d].
  /// state: null = nothing is carried (a whole row, or training).
  virtual Var forward(Pass& pass, Var x, LayerState* state) = 0;

  /// Fresh state for `rows` rows; null for layers that carry nothing: their output at a token depends on that token
  /// alone.
  virtual std::unique_ptr<LayerState> make_state(Arena& arena, int64_t rows, DType dtype) const = 0;

  /// Model FLOPs of one forward pass per token, mean over a row of `length` tokens (the layer page's
  /// cost section; training = 3x).
  virtual double flops_per_token(int64_t length) const = 0;

  /// Numbers of sparse tables that one token does not read: total - active (the same section).
  virtual int64_t idle_parameters() const { return 0; }

  /// Bytes that decoding must keep after `tokens` tokens of one row (docs/evaluations/cost.md, State).
  virtual int64_t state_bytes(int64_t tokens) const { return 0; }

  /// Records what `state` holds after `tokens` tokens of one document, for statistics: NAME.state (a recurrent state,
  /// [B, H, ...]) or NAME.slots_in_use [1].
  virtual void inspect_state(Stream& stream, const LayerState& state, int64_t tokens, Inspector& to) const {}

  /// Called before the first micro-batch of every optimizer step, skipped ones included.
  virtual void begin_step(Stream& stream, int64_t step) {}
  /// Called once per optimizer step, after the optimizer, for updates that layers own (docs/training.md, A step). They
  /// happen where applies [1] f64 on the device is not 0: the host does not know yet whether the step is skipped. A
  /// state that an optimizer of the layer's own moves is marked as reached, for whoever counts its updates.
  virtual void after_step(Stream& stream, int64_t step, const Tensor& applies) {}

  /// Why a training pass of this layer takes another course from step to step, as the host decides it; empty: it does
  /// not, so that the same launches can be repeated (core/launch_graph.h).
  virtual std::string needs_host() const { return ""; }
  /// Why this layer reads the rows of all ranks in each pass (with_all_rows), so that a rank trains it in one lane
  /// only; empty: it does not.
  virtual std::string needs_all_rows() const { return ""; }
};

struct ModelConfig;
class HamThresholds;

/// Objects that layers of one model share: made by the first that needs them.
struct SharedObjects {
  std::shared_ptr<HamThresholds> ham_thresholds;
};

/// What a layer is told when it is built.
struct BuildContext {
  const ModelConfig& model;
  ParamStore& params;
  int64_t block = 0;
  std::string name;   // "blocks.3.mixer"
  std::string layer;  // its name in model.layers: "gdn"
  SharedObjects& shared;

  /// Declares NAME.suffix.
  Param& declare(std::string suffix, Shape shape, Init init, ParamKind kind = ParamKind::trained) const {
    return params.declare({name + "." + suffix, shape, std::move(init), kind});
  }
};

/// A layer definition of model.layers.
class LayerConfig {
 public:
  virtual ~LayerConfig() = default;
  /// Declares the configuration fields ("type" is handled by the caller), with their constraints.
  virtual void fields(Fields& f) = 0;
  /// Checks that need the whole model. `f` reads the model object; key is "layers.NAME": report with
  /// f.fail(key + ".window", found, expected).
  virtual void check(const Fields& f, const std::string& key, const ModelConfig& model) const {}
  virtual std::unique_ptr<Layer> make(const BuildContext& context) const = 0;
  /// What the evaluation memory_stats derives from what layers of this type record. One list serves all of them in a
  /// model; the fields of the configuration play no part.
  virtual StatisticsCollectors statistics(const StatisticsOptions&) const { return {}; }
  /// Whether what a layer learns while it reads is learned from the rows of a micro-batch together, so that their
  /// number is a part of the model.
  virtual bool learns_per_micro_batch() const { return false; }
};
inline void fields(Fields& f, LayerConfig& config) { config.fields(f); }

/// A registered layer type: one entry in registry.cpp.
struct LayerType {
  std::string name;
  Role role;
  std::unique_ptr<LayerConfig> (*make)();
  /// Settings (the inside of a JSON object) of a small layer for models of width 48: `hebb selftest` and the tests of
  /// all layers run it. Sizes that are no multiples of tiles, and options that take kernels of their own.
  std::string small;
  /// Settings for models of width 256, which `hebb bench --layers` measures; empty: all of its models hold the type
  /// already.
  std::string measured;
};
const std::vector<LayerType>& layer_types();
const LayerType* find_layer_type(std::string_view name);  // null: unknown

}  // namespace hebb
