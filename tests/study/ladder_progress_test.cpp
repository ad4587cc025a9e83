#include "study/ladder/progress.h"

#include "study/ladder/ladder.h"
#include "study/report/read_metrics.h"
#include "tests/temp_folder.h"
#include "tests/test.h"

namespace {

/// A ladder of three runs of 100 steps: 1, 2 and 5 GFLOP.
void write_ladder(const TempFolder& folder) {
  folder.write(
      "sweep.json",
      R"({"name": "three", "runs": [{"id": "a", "steps": 100, "flops": 1e9}, {"id": "b", "steps": 100, "flops": 2e9},
    {"id": "c", "steps": 100, "flops": 5e9}]})");
}

RunStatus status(const std::string& state) {
  RunStatus s;
  s.state = state;
  return s;
}

struct Bar final : Progress {
  std::vector<std::string> calls;
  void begin(std::string_view title, uint64_t total, Unit unit, uint64_t done) override {
    CHECK(unit == Unit::megaflops);
    calls.push_back("begin " + std::string(title) + " " + std::to_string(done) + " of " + std::to_string(total));
  }
  void skip(uint64_t done) override { calls.push_back("skip " + std::to_string(done)); }
  void update(uint64_t done, std::string_view detail) override {
    calls.push_back(std::to_string(done) + ", " + std::string(detail));
  }
  void end() override { calls.push_back("end"); }
};

}  // namespace

FOLDER_TEST("the last logged step is read from the end of the metrics, whatever the length of the lines", "[fast]") {
  CHECK(last_logged_step(folder.path()) == 0);
  const auto metrics = [&](const std::string& text) {
    folder.write("metrics.jsonl", text);
    return last_logged_step(folder.path());
  };
  CHECK(metrics("") == 0);
  CHECK(metrics(R"({"step": 7, "lo)") == 0);
  CHECK(metrics("{\"step\": 7, \"loss\": 3}\n") == 7);
  CHECK(metrics("{\"step\": 7}\n{\"step\": 9, \"val\": \"text\", \"loss\": 3}\n{\"step\": 11") == 9);
  CHECK(metrics("{\"step\": 7}\nnot json\n") == 0);
  const std::string wide =
      "{\"step\": 8, \"layers\": \"" + std::string(40000, 'x') + "\"}\n";  // longer than what is read first
  CHECK(metrics("{\"step\": 7}\n" + wide) == 8);
  CHECK(metrics(wide) == 8);
  CHECK(metrics(wide + "{\"step\": 9}\n") == 9);
  CHECK(metrics(wide + wide.substr(0, 30000)) == 8);
}

FOLDER_TEST("a ladder's progress counts FLOPs, and does not wait for what failed", "[fast]") {
  write_ladder(folder);
  folder.write("b/metrics.jsonl", "{\"step\": 50, \"loss\": 3}\n");
  Bar bar;
  LadderProgress progress(folder.path(), &bar);
  std::vector<RunStatus> states = {status("done"), status("pending"), status("pending")};
  progress.begin(states);  // a is done, b was stopped half-way
  states[1].state = states[2].state = "running";
  folder.write("c/metrics.jsonl", "{\"step\": 20, \"loss\": 3}\n");
  progress.show(states);
  states[2].state = "failed";
  progress.show(states);
  states[1].state = "done";
  progress.end(states);
  CHECK(bar.calls == std::vector<std::string>{"begin three 2000 of 8000", "skip 2000", "2000, 1 of 3 runs done",
                                              "skip 2000", "3000, 1 of 3 runs done, 2 running", "skip 6000",
                                              "7000, 1 of 3 runs done, 1 running, 1 failed", "skip 2000",
                                              "4000, 2 of 3 runs done, 1 failed", "end"});
  LadderProgress(folder.path(), nullptr).begin(states);  // without a bar: nothing
}

FOLDER_TEST("the time that is left is a run's own, or that of its FLOPs at the speed of the others", "[fast]") {
  write_ladder(folder);
  const auto metrics = [&](const std::string& run, int step, int tokens) {
    folder.write(run + "/metrics.jsonl", "{\"step\": " + std::to_string(step) + ", \"loss\": 3, \"tokens\": " +
                                             std::to_string(tokens) + ", \"tokens_per_s\": 10}\n");
  };
  CHECK_THAT(ladder_status(folder.path()), Contains("eta not known yet"));
  metrics("a", 100, 1000);  // 1 GFLOP in 100 s
  metrics("b", 50, 500);    // 1 GFLOP in 50 s
  const std::string text = ladder_status(folder.path());
  CHECK_THAT(text, Contains("50/100    3.0000     00:00:50\n"));
  CHECK_THAT(text, Contains("0/100         -     00:06:15\n"));  // 5 GFLOP
  CHECK_THAT(text, Contains("2.00 GFLOP of 8.00 GFLOP (25%), eta 00:07:05\n"));
}
