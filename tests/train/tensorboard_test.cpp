#include "train/tensorboard.h"

#include "tests/temp_folder.h"
#include "tests/test.h"

namespace {

std::string hex(const std::string& bytes) {
  std::string text;
  for (const unsigned char c : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", c);
    text += digits;
  }
  return text;
}

}  // namespace

TEST_CASE("TensorBoard records have the bytes of the published vectors", "[fast]") {
  CHECK(hex(tensorboard_record(tensorboard_version_event(0.0))) ==
        "1800000000000000a37f4b220900000000000000001a0d627261696e2e4576656e743a32eedf28a3");
  CHECK(hex(tensorboard_record(tensorboard_scalar_event(1.0, 5, {{"loss", 2.5}}))) ==
        "1a00000000000000129bd82d09000000000000f03f10052a0d0a0b0a046c6f737315000020401f0ddde3");
}

TEST_CASE("an event of several scalars holds one value message each and a varint step", "[fast]") {
  CHECK(hex(tensorboard_scalar_event(1.0, 300, {{"a", 1.0}, {"b", -1.0}})) ==
        "09000000000000f03f10ac022a140a080a01611500008"
        "03f0a080a016215000080bf");
}

TEST_CASE("a start is a SessionLog, from whose step on TensorBoard forgets earlier files", "[fast]") {
  CHECK(hex(tensorboard_start_event(1.0, 301)) == "09000000000000f03f10ad023a020801");
}

FOLDER_TEST("an events file starts with the version and the step behind the checkpoint, and grows by whole records",
            "[fast]") {
  {
    TensorBoardWriter writer(folder / "tb", 10);
    writer.add(11, {{"train/loss", 2.0}});
    writer.add(12, {{"train/loss", 1.0}});
  }
  int files = 0;
  for (const auto& entry : fs::directory_iterator(folder / "tb")) {
    ++files;
    CHECK(entry.path().filename().string().starts_with("events.out.tfevents."));
    const std::string bytes = read_file(entry.path());
    CHECK_THAT(bytes.substr(12 + 9, 15), Contains("brain.Event:2"));
    CHECK(hex(bytes.substr(40 + 12 + 9, 6)) == "100b3a020801");
    CHECK(bytes.size() == 40 + 31 + 2 * (16 + 9 + 2 + 2 + 2 + 2 + 10 + 5));
  }
  CHECK(files == 1);
}
