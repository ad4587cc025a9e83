#include "train/run_log.h"

#include <fmt/core.h>

#include <regex>
#include <sstream>

#include "tests/temp_folder.h"
#include "tests/thrown.h"

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
  void time_left(double seconds) override { calls.push_back(fmt::format("left {:.0f}", seconds)); }
  void end() override { calls.push_back("end"); }
  void begin_part(std::string_view title, uint64_t total, Unit) override {
    calls.push_back("part " + std::string(title) + " " + std::to_string(total));
  }
  void end_part() override { calls.push_back("end part"); }
};

/// The lines of a log without their time stamps, whose form is checked.
std::vector<std::string> lines_of(const fs::path& path) {
  std::vector<std::string> lines;
  std::istringstream in(read_file(path));
  for (std::string line; std::getline(in, line);) {
    const std::regex stamp(R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} [+-]\d\d:\d\d (\[.*))");
    std::smatch match;
    REQUIRE(std::regex_match(line, match, stamp));
    lines.push_back(match[1]);
  }
  return lines;
}

}  // namespace

FOLDER_TEST("lines of the log have time, level and rank; those of the console have not", "[fast]") {
  std::vector<std::string> printed;
  RunLog log({[&](std::string_view line) { printed.emplace_back(line); }, nullptr});
  log.open(folder / "train.log", 3);
  log.say("first\nsecond {} %v\n");
  log.step("step 1/2 loss 3", "loss 3");
  log.say("a spike", LogLevel::warning);
  log.warn("odd");
  log.error("over");
  CHECK(printed == std::vector<std::string>{"first", "second {} %v", "step 1/2 loss 3", "a spike", "warning: odd"});
  CHECK(lines_of(folder / "train.log") ==
        std::vector<std::string>{"[info] rank 3: first", "[info] rank 3: second {} %v",
                                 "[info] rank 3: step 1/2 loss 3", "[warning] rank 3: a spike", "[warning] rank 3: odd",
                                 "[error] rank 3: over"});
}

FOLDER_TEST("a log goes on after what is there, and says what its disk refuses", "[fast]") {
  folder.write("train.log", "before\n");
  RunLog log({});
  log.open(folder / "train.log", 0);
  log.say("after");
  CHECK_THAT(read_file(folder / "train.log"), Catch::StartsWith("before\n2") && Catch::EndsWith("rank 0: after\n"));
  CHECK_THROWS_WITH(log.open(folder / "nothing" / "train.log", 0), Contains("nothing/train.log: cannot open: "));
  if (fs::exists("/dev/full")) {
    log.open("/dev/full", 0);
    CHECK(thrown<CheckpointError>([&] { log.say("text"); }) == "/dev/full: cannot write: No space left on device");
    log.error("the error that ends a run is not hidden by one of its log");
  }
}

FOLDER_TEST("on a terminal a bar replaces the lines of steps, which the log keeps", "[fast]") {
  std::vector<std::string> printed;
  Bar bar;
  RunLog log({[&](std::string_view line) { printed.emplace_back(line); }, &bar});
  log.open(folder / "train.log", 0);
  log.begin_bar("train", 9, 4);
  log.step("step 5/9 loss 3", "loss 3");
  log.update_bar(5, 60);
  log.begin_part("validation held", 8);
  log.update_part(8);
  log.end_part();
  log.update_bar(6, 45);
  log.end_bar();
  CHECK(printed.empty());
  CHECK(bar.calls == std::vector<std::string>{"begin train 9 from 4", "left 60", "update 5 loss 3",
                                              "part validation held 8", "update 8 ", "end part", "left 45",
                                              "update 6 loss 3", "end"});
  CHECK(lines_of(folder / "train.log") == std::vector<std::string>{"[info] rank 0: step 5/9 loss 3"});
}
