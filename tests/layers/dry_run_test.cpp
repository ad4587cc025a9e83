// A training pass on the counting device, for the model of every golden case.
#include "core/files.h"
#include "tests/layers/harness.h"

using namespace hebb;
using namespace hebb::testing;

TEST_CASE("a dry run of any layer counts memory and leaves none behind", "[fast]") {
  int models = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(HEBB_TEST_DATA) / "golden")) {
    if (!fs::exists(entry.path() / "model.json")) { continue; }
    INFO(entry.path().filename());
    ModelConfig config;
    Fields::read(parse_json(read_file(entry.path() / "model.json"), "model.json"), "model", config);
    Arena arena(DeviceKind::count);
    Stream stream{DeviceKind::count};
    Model model(config);
    model.params().allocate(arena, DType::f32, true);
    const Rows rows = Rows::streams(stream, arena, 4, 300);
    const Buffer tokens(arena, {1200}, DType::i32, "tokens"), row_loss(arena, {1200}, DType::f64, "loss");
    const int64_t before = arena.in_use_bytes();
    {
      Tape tape(stream, arena, true);
      Pass pass{tape, rows};
      model.loss(pass, model.hidden(pass, tokens), tokens, row_loss, 1.0);
      tape.backward();
    }
    CHECK(arena.in_use_bytes() == before);
    CHECK(arena.peak_bytes() > before);
    ++models;
  }
  CHECK(models >= 56);
}
