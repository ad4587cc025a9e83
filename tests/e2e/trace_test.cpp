// hebb trace: decisions written by one call and taken as given by another.
#include "core/files.h"
#include "tests/e2e/command.h"

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
