#pragma once
// All properties of layers in one call.
#include "tests/layers/fast_weights.h"

namespace hebb::testing {

/// One block of width 48 with a layer of `type`, and attention or SwiGLU where it is something else; vocabulary 29.
inline std::string one_layer_json(Role role, const std::string& type, const std::string& settings) {
  const std::string roles = role == Role::mixer ? R"("mixer": "x", "ffn": "mlp")"
                            : role == Role::ffn ? R"("mixer": "full", "ffn": "x")"
                                                : R"("mixer": "full", "ffn": "mlp", "memory": "x")";
  // A large epsilon: norms of outputs that are nearly 0 are steps that difference quotients cannot follow.
  return R"({"vocab_size": 29, "hidden_size": 48, "num_layers": 1, "norm_eps": 0.1, "layers": {
    "x": {"type": ")" +
         type + "\", " + settings + R"(}, "mlp": {"type": "swiglu", "intermediate_size": 20},
    "full": {"type": "attention", "num_heads": 2, "head_dim": 8}}, "pattern": [{)" +
         roles + "}]}";
}

/// The layer under test of such a model.
inline const Layer& layer_of(const TestModel& m, Role role) {
  const Model::Block& block = m.model->blocks()[0];
  return *(role == Role::mixer ? block.mixer : role == Role::ffn ? block.ffn : block.memory);
}

/// Logits of a stream that moves fast weights do not depend on how it is cut.
inline std::string stream_fault(TestModel& m, const TraceInput& input, const std::vector<int64_t>& lengths) {
  const FastWeights start = fast_weights(m);
  const std::vector<double> whole = stream(m, input, {input.length});
  set_fast_weights(m, start);
  return difference_fault("logits of a stream in segments against one pass", stream(m, input, lengths), whole, 1e-10);
}

/// A property and what is wrong with it.
struct Fault {
  std::string property, text;
};

/// Makes the model under test anew.
using MakeModel = std::function<std::unique_ptr<TestModel>(DType)>;

/// Adds the first fault of a property, if it has one.
inline void add_fault(std::vector<Fault>& faults, const char* property, const MakeModel& make,
                      const std::function<std::string(TestModel&)>& fault) {
  const auto model = make(DType::f64);
  if (const std::string text = fault(*model); !text.empty()) { faults.push_back({property, text}); }
}

/// Difference quotients of every parameter. Choices of slots or tokens are constants of the derivative: one that turns
/// over would show as a jump.
inline std::vector<Fault> derivative_faults(Role role, const MakeModel& make) {
  TraceInput two = random_input(2, 21, 29), documents = two;
  set_documents(documents, {{1, 3, 17}, {19, 1, 1}});
  constexpr double kFloor = 1e-9;  // lact divides by norms of weights that it moves: its losses round at 1e-14
  std::vector<Fault> faults;
  for (const auto& [property, input] :
       {std::pair{"gradients", &two}, std::pair{"gradients of documents", &documents}}) {
    add_fault(faults, property, make, [&, of = input](TestModel& m) {
      TraceOptions options = reading();
      if (role != Role::memory) { options.forced = m.run(*of, inside(reading({}))).inside; }
      return gradient_fault(m, *of, options, 2, 1e-6, 1e-5, kFloor);
    });
  }
  return faults;
}

/// What holds for the logits, and for the bits of gradients.
inline std::vector<Fault> reading_faults(Role role, const MakeModel& make) {
  const TraceInput one = random_input(1, 40, 29), two = random_input(2, 21, 29);
  std::vector<Fault> faults;
  const auto add = [&](const char* property, const std::function<std::string(TestModel&)>& fault) {
    add_fault(faults, property, make, fault);
  };
  add("decoding", [&](TestModel& m) {
    return role == Role::memory ? stream_fault(m, one, {19, 1, 1, 2, 17})
                                : split_fault(m, one, {{19, 1, 1, 2, 17}, {12, 3, 12, 13}, {40}}, 1e-10, reading());
  });
  if (role != Role::memory) {  // a memory is shared by all sequences
    TraceInput packed = one;
    set_documents(packed, {{2, 19, 1, 18}});
    add("decoding of documents", [&](TestModel& m) {
      return split_fault(m, packed, {{2, 19, 19}, {1, 11, 9, 19}}, 1e-10, reading());
    });
    add("documents", [&](TestModel& m) { return document_fault(m, one, {1, 3, 19, 17}, 1e-11, 1e-10, reading()); });
  }
  for (const int64_t changed_from : {11, 12, 13, 30}) {  // starts, ends and insides of short chunks
    add("order of tokens", [&](TestModel& m) { return order_fault(m, one, changed_from); });
  }
  add("threads and recomputation", [&](TestModel& m) { return repeat_fault(m, two); });
  return faults;
}

/// Everything that must hold for a layer, on the model that `make` builds: the first fault of each property.
inline std::vector<Fault> layer_faults(Role role, const MakeModel& make) {
  std::vector<Fault> faults = derivative_faults(role, make);
  for (Fault& fault : reading_faults(role, make)) { faults.push_back(std::move(fault)); }
  if (role == Role::memory) {
    add_fault(faults, "statistics", make, [](TestModel& m) {
      return statistics_fault(m, *m.config.find(*m.config.block(0).memory)->config, "blocks.0.memory");
    });
  }
  TraceInput documents = random_input(2, 21, 29);
  set_documents(documents, {{1, 3, 17}, {19, 1, 1}});
  add_fault(faults, "single precision", make,
            [&](TestModel& m) { return precision_fault(m, *make(DType::f32), documents, reading()); });
  add_fault(faults, "cost", make, [&](TestModel& m) { return cost_fault(layer_of(m, role), m.stream); });
  return faults;
}

/// The properties of readings for a model with mixers whose derivatives are tested apart.
inline void check_reading(const std::string& model) {
  INFO(model);
  for (const Fault& fault :
       reading_faults(Role::mixer, [&](DType dtype) { return std::make_unique<TestModel>(model, dtype, 3, 0.4); })) {
    FAIL_CHECK(fault.property << ": " << fault.text);
  }
}

/// The same as a check of a test case; the first name in `settings` is "type".
inline void check_layer(const std::string& type, const std::string& settings) {
  const LayerType* known = find_layer_type(type);
  INFO(type << ": " << settings);
  REQUIRE(known != nullptr);
  const std::string json = one_layer_json(known->role, type, settings);
  for (const Fault& fault :
       layer_faults(known->role, [&](DType dtype) { return std::make_unique<TestModel>(json, dtype, 3, 0.2); })) {
    FAIL_CHECK(type << ", " << fault.property << ": " << fault.text);
  }
}

}  // namespace hebb::testing
