// What holds for every layer, for each type in the registry.
#include "tests/layers/every_layer.h"

using namespace hebb;
using namespace hebb::testing;

TEST_CASE("every type of layer in the registry has the properties of layers", "[fast]") {
  for (const LayerType& type : layer_types()) { check_layer(type.name, type.small); }
}
