// The layers of docs/adding-a-layer.md have the properties of layers, and layers that lack one are told so: what
// every_layer_test.cpp finds in a new layer whose author forgot something.
#include <list>

#include "tests/layers/every_layer.h"
#include "tests/layers/example_layer.h"

namespace {

/// The example layer, with one thing wrong.
class Broken : public Layer {
 public:
  explicit Broken(std::unique_ptr<Layer> inner) : inner_(std::move(inner)) {}
  Var forward(Pass& pass, Var x, LayerState* state) override { return inner_->forward(pass, x, state); }
  std::unique_ptr<LayerState> make_state(Arena& arena, int64_t rows, DType dtype) const override {
    return inner_->make_state(arena, rows, dtype);
  }
  double flops_per_token(int64_t length) const override { return inner_->flops_per_token(length); }
  int64_t state_bytes(int64_t tokens) const override { return inner_->state_bytes(tokens); }

 protected:
  std::unique_ptr<Layer> inner_;
};

struct WithoutBackward final : Broken {
  using Broken::Broken;
  Var forward(Pass& pass, Var x, LayerState* state) override {
    const Var y = Broken::forward(pass, x, state);
    const Var copied = pass.tape.output(pass.tape.shape(y), pass.tape.dtype(y), "copy");  // of no node of its own
    copy(pass.stream(), pass.tape.value(copied), pass.tape.value(y));
    return copied;
  }
};
struct WithoutState final : Broken {
  using Broken::Broken;
  std::unique_ptr<LayerState> make_state(Arena&, int64_t, DType) const override { return nullptr; }
};
struct ForgetsState final : Broken {
  using Broken::Broken;
  Var forward(Pass& pass, Var x, LayerState*) override { return Broken::forward(pass, x, nullptr); }
};
struct SeesOtherDocuments final : Broken {
  using Broken::Broken;
  Var forward(Pass& pass, Var x, LayerState* state) override {
    rows_.push_back(Rows::streams(pass.stream(), pass.tape.arena(), pass.batch(), pass.length(), pass.rows.offset()));
    Pass other{pass.tape, rows_.back()};
    return Broken::forward(other, x, state);
  }
  std::list<Rows> rows_;
};
struct LooksAhead final : Broken {
  using Broken::Broken;
  Var forward(Pass& pass, Var x, LayerState* state) override {
    Tape& tape = pass.tape;
    const int64_t d = tape.shape(x)[1], moved = (pass.tokens() - 1) * d;
    const Var next = tape.output(tape.shape(x), tape.dtype(x), "next token");
    fill_zero(pass.stream(), tape.value(next));
    if (moved > 0) { copy(pass.stream(), tape.value(next).slice(0, {moved}), tape.value(x).slice(d, {moved})); }
    return Broken::forward(pass, next, state);
  }
};
struct RemembersCalls final : Broken {
  using Broken::Broken;
  Var forward(Pass& pass, Var x, LayerState* state) override {
    const Var y = Broken::forward(pass, x, state);
    return ++calls_ % 2 == 0 ? Broken::forward(pass, y, state) : y;
  }
  int64_t calls_ = 0;
};
struct CostsNothing final : Broken {
  using Broken::Broken;
  double flops_per_token(int64_t) const override { return 0; }
};

template <class L> struct BrokenConfig final : LayerConfig {
  void fields(Fields&) override {}
  std::unique_ptr<Layer> make(const BuildContext& c) const override {
    return std::make_unique<L>(FadeConfig().make(c));
  }
};

/// A model of one block with this layer in place of one of `type`.
std::unique_ptr<TestModel> model_with(std::unique_ptr<LayerConfig> layer, const std::string& type = "gdn",
                                      DType dtype = DType::f64) {
  const LayerType& known = *find_layer_type(type);
  ModelConfig config = read_model(one_layer_json(known.role, type, known.small));
  for (LayerDefinition& d : config.layers) {
    if (d.name == "x") { d.config = std::move(layer); }
  }
  return std::make_unique<TestModel>(std::move(config), dtype, 3, 0.2);
}

/// All faults in one text.
template <class Config> std::string faults_of() {
  std::string text;
  for (const Fault& f :
       layer_faults(Role::mixer, [](DType dtype) { return model_with(std::make_unique<Config>(), "gdn", dtype); })) {
    text += f.property + ": " + f.text + "\n";
  }
  return text;
}

}  // namespace

TEST_CASE("the layers of docs/adding-a-layer.md have the properties of layers", "[fast]") {
  CHECK(faults_of<FadeConfig>() == "");
  CHECK(faults_of<GlaConfig>() == "");
}

TEST_CASE("a layer that lacks a property is told which, and where to look", "[fast]") {
  CHECK_THAT(faults_of<BrokenConfig<WithoutBackward>>(),
             Contains("gradients: blocks.0.mixer") &&
                 Contains("the backward pass does not reach it, but the loss depends on it"));
  CHECK_THAT(faults_of<BrokenConfig<WithoutState>>(),
             Contains("decoding: logits of single tokens with a carried state against one pass") &&
                 Contains("cost: state_bytes is 64, but make_state returns none"));
  CHECK_THAT(faults_of<BrokenConfig<ForgetsState>>(), Contains("decoding: logits of single tokens"));
  CHECK_THAT(faults_of<BrokenConfig<SeesOtherDocuments>>(),
             Contains("documents: logits of documents in one row against rows of their own"));
  CHECK_THAT(faults_of<BrokenConfig<LooksAhead>>(),
             Contains("order of tokens: logits before the first of other tokens"));
  CHECK_THAT(faults_of<BrokenConfig<RemembersCalls>>(),
             Contains("threads and recomputation: ") && Contains("other bits"));
  CHECK_THAT(faults_of<BrokenConfig<CostsNothing>>(), Contains("cost: flops_per_token is 0, expected a number > 0"));
}

TEST_CASE("a memory without statistics is told so", "[fast]") {
  const auto m = model_with(std::make_unique<BrokenConfig<CostsNothing>>(), "fwpkm");
  const LayerConfig& config = *m->config.find("x")->config;
  CHECK_THAT(statistics_fault(*m, config, "blocks.0.memory"), Contains("blocks.0.memory has no statistics"));
}

TEST_CASE("docs/adding-a-layer.md lists every operation of layers/ops", "[fast]") {
  const std::string page = read_file(fs::path(HEBB_SOURCE) / "docs/adding-a-layer.md");
  for (const fs::directory_entry& entry : fs::directory_iterator(fs::path(HEBB_SOURCE) / "layers/ops")) {
    if (entry.path().extension() == ".h") { CHECK_THAT(page, Contains("`" + entry.path().filename().string() + "`")); }
  }
}

TEST_CASE("the code of docs/adding-a-layer.md is that of the tested layers", "[fast]") {
  const std::string page = read_file(fs::path(HEBB_SOURCE) / "docs/adding-a-layer.md"), fence = "\n```cpp\n";
  const std::string code = read_file(fs::path(HEBB_SOURCE) / "tests/layers/example_layer.h");
  size_t found = 0;
  for (size_t at = page.find(fence); at != std::string::npos; at = page.find(fence, at), ++found) {
    at += fence.size();
    const std::string block = page.substr(at, page.find("```", at) - at);
    INFO(block);
    CHECK(code.find(block) != std::string::npos);
  }
  CHECK(found >= 6);
}
