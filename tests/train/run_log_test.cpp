#include "train/run_log.h"

#include "tests/temp_folder.h"
#include "tests/test.h"

using namespace hebb;

namespace {

/// Notes the calls of a bar.
struct Bar final : Progress {
  std::vector<std::string> calls;
  void begin(std::string_view title, uint64_t total, Unit, uint64_t done) override {
    calls.push_back("begin " + std::string(title) + " " + std::to_string(total) + " from " + std::to_string(done));
  }
  void update(uint64_t done, std::string_view detail) override {
    calls.push_back("update " + std::to_string(done) + " " + std::string(detail));
  }
  void end() override { calls.push_back("end"); }
};

}  // namespace

TEST_CASE("what a run says before it has a folder leads its log", "[fast]") {
  const TempFolder folder;
  std::vector<std::string> printed;
  RunLog log({[&](std::string_view line) { printed.emplace_back(line); }, nullptr});
  log.say("first\nsecond\n");
  log.open(folder / "train.log");
  log.step("step 1/2 loss 3", 1, "loss 3");
  log.keep("error: over");
  CHECK(printed == std::vector<std::string>{"first", "second", "step 1/2 loss 3"});
  CHECK(read_file(folder / "train.log") == "first\nsecond\nstep 1/2 loss 3\nerror: over\n");
}

TEST_CASE("on a terminal a bar replaces the lines of steps, which the log keeps", "[fast]") {
  const TempFolder folder;
  std::vector<std::string> printed;
  Bar bar;
  RunLog log({[&](std::string_view line) { printed.emplace_back(line); }, &bar});
  log.open(folder / "train.log");
  log.begin_bar("train", 9, 4);
  log.step("step 5/9 loss 3", 5, "loss 3");
  log.update_bar(6);
  log.end_bar();
  CHECK(printed.empty());
  CHECK(bar.calls == std::vector<std::string>{"begin train 9 from 4", "update 5 loss 3", "update 6 loss 3", "end"});
  CHECK(read_file(folder / "train.log") == "step 5/9 loss 3\n");
}
