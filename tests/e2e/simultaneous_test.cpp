// Several starts of a verb in one folder at the same time.
#include <algorithm>
#include <set>

#include "core/files.h"
#include "tests/e2e/command.h"

namespace {

/// Exit codes of `count` times `hebb ARGUMENTS` at once; what they say lies in out.N.
std::vector<int> at_once(const TempFolder& folder, const std::string& arguments, int count) {
  const std::string command = "cd '" + folder.path().string() + "'; for i in $(seq " + std::to_string(count) +
                              "); do ('" + HEBB_BINARY + "' " + arguments +
                              " > out.$i 2>&1; echo $? > code.$i) & done; wait";
  REQUIRE(std::system(command.c_str()) == 0);
  std::vector<int> codes;
  for (int i = 1; i <= count; ++i) {
    int code = -1;
    std::ifstream(folder / ("code." + std::to_string(i))) >> code;
    codes.push_back(code);
  }
  return codes;
}

/// One start at least worked; the others did, too, later, or say who has the folder.
void check_codes(const TempFolder& folder, const std::vector<int>& codes) {
  CHECK(std::count(codes.begin(), codes.end(), 0) >= 1);
  for (size_t i = 0; i < codes.size(); ++i) {
    const std::string said = read_file(folder / ("out." + std::to_string(i + 1)));
    INFO(said);
    CHECK((codes[i] == 0 || (codes[i] == 4 && said.find(" is in use by ") != std::string::npos)));
  }
}

}  // namespace

FOLDER_TEST("of simultaneous starts of a new run one trains, the others say who does, and nothing is missing") {
  train_on_bytes(folder, R"("steps": 6)");
  const std::string metrics = read_file(folder / "run/metrics.jsonl");
  const auto lines = std::count(metrics.begin(), metrics.end(), '\n');
  for (int group = 0; group < 8; ++group) {
    const std::string run = "run" + std::to_string(group);
    check_codes(folder, at_once(folder, "train c.json --run-dir " + run, 2 + group % 4));
    const std::string own = read_file(folder / (run + "/metrics.jsonl"));
    CHECK(std::count(own.begin(), own.end(), '\n') == lines);
    for (const char* name : {"config.json", "train.log", "tb", "checkpoints/step_00000006/state.json"}) {
      INFO(name);
      CHECK(fs::exists(folder / run / name));
    }
    CHECK_FALSE(fs::exists(folder / run / "lock"));
    CHECK(read_file(folder / run / "checkpoints/step_00000006/model.safetensors") ==
          read_file(folder / "run/checkpoints/step_00000006/model.safetensors"));
  }
}

FOLDER_TEST("of simultaneous starts of an evaluation one evaluates, and the others say who does") {
  train_on_bytes(folder);
  folder.write("e.json", R"({"evaluations": [{"name": "p", "kind": "stream_ppl", "data": {"path": "set"}}]})");
  folder.write("run/evals/step_00000001/p.json.tmp-17", "half");
  folder.write("run/evals/step_00000001/rendezvous.17.json", "{}");
  for (int group = 0; group < 4; ++group) {
    check_codes(folder, at_once(folder, "eval e.json --checkpoint run --again", 3));
    CHECK_THAT(read_file(folder / "run/evals/step_00000001/p.json"), Contains(R"("status": "ok")"));
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder / "run/evals/step_00000001")) {
      names.insert(entry.path().filename().string());
    }
    CHECK(names == std::set<std::string>{"p.items.jsonl", "p.json"});
  }
}
