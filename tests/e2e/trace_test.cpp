// hebb trace: decisions written by one call and taken as given by another; its file is whole or the one before.
#include "core/files.h"
#include "core/safetensors.h"
#include "tests/e2e/command.h"
#include "tests/train/faults.h"

namespace {

std::string trace_of(const std::string& golden, const std::string& rest) {
  const std::string folder = (fs::path(HEBB_SOURCE) / "tests" / "golden" / golden).string();
  return "trace '" + folder + "/model.json' --weights '" + folder + "/weights.safetensors' --rows '" + folder +
         "/rows.safetensors' " + rest;
}

}  // namespace

FOLDER_TEST("decisions of a trace, forced upon another, give the same file", "[fast]") {
  output_of(folder, trace_of("ham-1", "--inside --grads --out made"));
  output_of(folder, trace_of("ham-1", "--inside --grads --force made --out forced"));
  CHECK(read_file(folder / "made") == read_file(folder / "forced"));
  output_of(folder, trace_of("ham-1", "--precision fp32 --out narrow"));
  CHECK(SafetensorsFile(folder / "made").find("logits")->dtype_text == "F64");
  CHECK(SafetensorsFile(folder / "narrow").find("logits")->dtype_text == "F32");
}

FOLDER_TEST("decisions that a trace cannot use are refused", "[fast]") {
  output_of(folder, trace_of("attention-1", "--out none"));
  output_of(folder, trace_of("ovq-1", "--inside --out ovq"));
  check_error(
      folder, trace_of("ham-1", "--force none --out out"), 3,
      Contains("none: decisions to force (found no integer tensor, expected decisions of this model, such as blocks."));

  check_error(folder, trace_of("attention-1", "--force ovq --out out"), 3,
              Contains("ovq: decisions to force") && Contains("no layer of this model decides anything"));
  CHECK_FALSE(fs::exists(folder / "out"));
}

FOLDER_TEST("a trace that is killed at any call leaves the file before, and the next one nothing of it", "[fast]") {
  output_of(folder, trace_of("attention-1", "--mode eval --precision fp32 --out other"));
  output_of(folder, trace_of("attention-1", "--out whole"));
  const std::string before = read_file(folder / "other"), after = read_file(folder / "whole");
  REQUIRE(before != after);
  int kills = 0;
  for (CommandResult result{137, "", ""}; result.code == 137;) {
    folder.write("out", before);
    {
      const testing::Fault fault = testing::Fault::at_call(folder.path(), kills + 1, SIGKILL);
      result = run_hebb(folder, trace_of("attention-1", "--out out"));
    }
    INFO(kills << ": " << result.err);
    REQUIRE((result.code == 137 || result.code == 0));
    const std::string found = read_file(folder / "out");
    CHECK((result.code == 0 ? found == after : found == before || found == after));
    kills += result.code == 137 ? 1 : 0;
  }
  CHECK(kills > 3);
  output_of(folder, trace_of("attention-1", "--out out"));
  for (const fs::directory_entry& entry : fs::directory_iterator(folder.path())) {
    CHECK_THAT(entry.path().filename().string(), !Contains("tmp-") && !Contains("lock"));
  }
}

FOLDER_TEST("a trace without a folder for its file is an error", "[fast]") {
  check_error(folder, trace_of("attention-1", "--out none/out"), 4, Contains("none/out: cannot create"));
}

FOLDER_TEST("a trace takes ids of the vocabulary, and -100 for a target that is ignored", "[fast]") {
  const fs::path golden = fs::path(HEBB_SOURCE) / "tests" / "golden" / "attention-1";
  const std::string command = "trace '" + (golden / "model.json").string() + "' --weights '" +
                              (golden / "weights.safetensors").string() + "' --rows rows --out out";
  const auto write = [&](std::vector<int64_t> inputs, std::vector<int64_t> targets) {
    write_safetensors(folder / "rows", {{"inputs", {inputs.data(), DType::i64, {1, 3}}},
                                        {"targets", {targets.data(), DType::i64, {1, 3}}}});
  };
  write({0, 60, 7}, {60, -100, 0});
  CHECK_THAT(output_of(folder, command), Contains("wrote out"));
  write({0, 60, 7}, {60, -100, 61});
  check_error(folder, command, 3,
              Contains("targets[2]: token id outside the vocabulary (found 61, expected 0 to 60 or -100)"));
  write({0, -100, 7}, {60, -100, 0});
  check_error(folder, command, 3,
              Contains("inputs[1]: token id outside the vocabulary (found -100, expected 0 to 60)"));
}

FOLDER_TEST("damaged files of a trace are refused with their name", "[fast]") {
  const fs::path golden = fs::path(HEBB_SOURCE) / "tests" / "golden" / "attention-1";
  for (const std::string name : {"weights", "rows"}) {
    const std::string whole = read_file(golden / (name + ".safetensors"));
    const std::string option =
        "trace '" + (golden / "model.json").string() + "' --weights '" +
        (name == "weights" ? fs::path("bad") : golden / "weights.safetensors").string() + "' --rows '" +
        (name == "rows" ? fs::path("bad") : golden / "rows.safetensors").string() + "' --out out";
    for (const size_t size : {size_t{0}, size_t{5}, size_t{40}, whole.size() - 1}) {
      folder.write("bad", whole.substr(0, size));
      check_error(folder, option, 4, Contains("error: bad: "));
    }
    CHECK_FALSE(fs::exists(folder / "out"));
  }
  folder.write("bad", "no trace");
  check_error(folder, trace_of("ham-1", "--force bad --out out"), 4, Contains("error: bad: "));
}
