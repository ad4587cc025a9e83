// Results of several checkpoints side by side.
#include "eval/comparison.h"

#include "tests/test.h"

namespace {

Json result(const std::string& tokenizer, double nll, double bits) {
  return Json::object(
      {{"name", "held"},
       {"kind", "stream_ppl"},
       {"tokenizer", tokenizer},
       {"metrics", Json::object({{"nll", Json::object({{"value", nll}})},
                                 {"bits_per_byte", Json::object({{"value", bits}, {"stderr", 0.5}})}})}});
}

}  // namespace

TEST_CASE("losses per token of different tokenizers have lines of their own", "[fast]") {
  CHECK(comparison_text({{"a:1", {result("0123456789", 2.5, 1)}}, {"b", {result("0123456789", 3, 1.25)}}}) ==
        "                        a:1           b\n"
        "held.nll                2.5           3\n"
        "held.bits_per_byte  1 ± 0.5  1.25 ± 0.5");
  CHECK(comparison_text({{"a:1", {result("0123456789", 2.5, 1)}}, {"b", {result("9876543210", 3, 1.25)}}}) ==
        "                                 a:1           b\n"
        "held.nll (tokenizer 012345)      2.5           -\n"
        "held.bits_per_byte           1 ± 0.5  1.25 ± 0.5\n"
        "held.nll (tokenizer 987654)        -           3");
}

TEST_CASE("a checkpoint is called by its run and step", "[fast]") {
  CHECK(checkpoint_label("/x/runs/q/checkpoints/step_00000200/model.safetensors") == "q:200");
  CHECK(checkpoint_label("/x/runs/q/checkpoints/step_00000000/model.safetensors") == "q:0");
  CHECK(checkpoint_label("/x/weights/model.safetensors") == "weights");
}
