// What holds for every layer, for each type in the registry.
#include "tests/layers/every_layer.h"

TEST_CASE("every type of layer in the registry has the properties of layers", "[fast]") {
  for (const LayerType& type : layer_types()) { check_layer(type.name, type.small); }
}

TEST_CASE("every type of layer gives the same bits on 1 and 3 threads and with recomputation", "[fast][threads]") {
  for (const LayerType& type : layer_types()) {
    INFO(type.name);
    TestModel m(one_layer_json(type.role, type.name, type.small), DType::f32, 3, 0.4);
    TraceInput input = random_input(3, 90, 29);
    set_documents(input, {{90}, {10, 80}, {64, 1, 25}});
    check_threads_and_recompute(m, input);
  }
}
