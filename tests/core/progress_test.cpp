#include "core/progress.h"

#include "tests/test.h"

namespace {

struct Screen {
  std::string text;
  double now = 0;
  int columns = 200;

  ProgressOutput output(bool is_terminal) {
    return {[this](std::string_view t) { text += t; }, [this] { return now; }, [this] { return columns; }, is_terminal};
  }
};

}  // namespace

TEST_CASE("plain progress writes a line at the start, every ten seconds and at the end", "[fast]") {
  Screen screen;
  TextProgress progress(screen.output(false));
  progress.begin("encode", 3 << 20, Progress::Unit::bytes);
  screen.now = 9.5;
  progress.update(1 << 20, "");
  screen.now = 10.0;
  progress.update(1 << 20, "7 documents");
  screen.now = 30.0;
  progress.update(3 << 20, "21 documents");
  progress.end();
  CHECK(screen.text ==
        "encode: 0 B of 3.0 MiB (0%)\n"
        "encode: 1.0 MiB of 3.0 MiB (33%), 102.4 KiB/s, eta 00:00:20, 7 documents\n"
        "encode: 3.0 MiB of 3.0 MiB (100%), 102.4 KiB/s, 21 documents\n"
        "encode: 3.0 MiB of 3.0 MiB (100%), 102.4 KiB/s, took 00:00:30, 21 documents\n");
}

TEST_CASE("work in FLOPs is written with prefixes, and plain lines can be rarer", "[fast]") {
  Screen screen;
  ProgressOutput output = screen.output(false);
  output.line_seconds = 60;
  TextProgress progress(output);
  progress.begin("ladder", 4'000'000, Progress::Unit::megaflops, 1'000'000);
  screen.now = 59;
  progress.update(1'500'000, "");
  screen.now = 100;
  progress.update(2'000'000, "3 of 8 runs done");
  progress.end();
  CHECK(screen.text ==
        "ladder: 1.00 TFLOP of 4.00 TFLOP (25%)\n"
        "ladder: 2.00 TFLOP of 4.00 TFLOP (50%), 10.0 GFLOP/s, eta 00:03:20, 3 of 8 runs done\n"
        "ladder: 2.00 TFLOP of 4.00 TFLOP (50%), 10.0 GFLOP/s, took 00:01:40, 3 of 8 runs done\n");
  CHECK(format_flops(0) == "0 FLOP");
  CHECK(format_flops(999.4) == "999 FLOP");
  CHECK(format_flops(999.6) == "1.00 kFLOP");
  CHECK(format_flops(99.96e6) == "100 MFLOP");
  CHECK(format_flops(5.57e22) == "55.7 ZFLOP");
}

TEST_CASE("terminal progress redraws one line at most ten times a second", "[fast]") {
  Screen screen;
  TextProgress progress(screen.output(true));
  progress.begin("train", 48, Progress::Unit::count);
  CHECK(screen.text == "\r\033[Ktrain: [........................] 0 of 48 (0%)");
  screen.text.clear();
  screen.now = 0.05;
  progress.update(1, "loss 3.0");
  CHECK(screen.text.empty());
  screen.now = 6.0;
  progress.update(12, "loss 2.9");
  CHECK(screen.text == "\r\033[Ktrain: [######..................] 12 of 48 (25%), 2.00/s, eta 00:00:18, loss 2.9");
  screen.text.clear();
  progress.message("a bad line was skipped");
  CHECK(screen.text.rfind("\r\033[Ka bad line was skipped\n\r\033[Ktrain: [", 0) == 0);
  screen.text.clear();
  progress.end();
  CHECK(screen.text.back() == '\n');
}

TEST_CASE("work that was finished before counts for the bar but not for rate and time left", "[fast]") {
  Screen screen;
  TextProgress progress(screen.output(true));
  progress.begin("train", 48, Progress::Unit::count, 24);
  CHECK(screen.text == "\r\033[Ktrain: [############............] 24 of 48 (50%)");
  screen.text.clear();
  screen.now = 6.0;
  progress.update(36, "loss 2.9");
  CHECK(screen.text == "\r\033[Ktrain: [##################......] 36 of 48 (75%), 2.00/s, eta 00:00:06, loss 2.9");
  screen.text.clear();
  screen.now = 12.0;
  progress.skip(30);  // six more that took no time
  progress.update(42, "");
  CHECK(screen.text == "\r\033[Ktrain: [#####################...] 42 of 48 (87%), 1.00/s, eta 00:00:06");
  progress.end();
}

TEST_CASE("terminal progress never exceeds the terminal and cuts between characters", "[fast]") {
  Screen screen;
  screen.columns = 12;
  TextProgress progress(screen.output(true));
  progress.begin("größe", 0, Progress::Unit::count);
  screen.now = 1;
  screen.text.clear();
  progress.update(3, "ääääää");
  CHECK(screen.text == "\r\033[Kgröße: 3, ä");  // 11 of 12 columns
  progress.end();
}

TEST_CASE("a narrow terminal loses the bar, the rate, the share and then the last fields", "[fast]") {
  Screen screen;
  TextProgress progress(screen.output(true));
  progress.begin("train", 20000, Progress::Unit::count);
  const auto at = [&](int columns) {
    screen.columns = columns;
    screen.now = 500;
    progress.update(1000, "loss 3.0412, gnorm 0.412, lr 1.00e-03");
    screen.text.clear();
    progress.message("");
    const std::string line = screen.text.substr(screen.text.rfind('\r'));
    CHECK(line.size() - 4 < static_cast<size_t>(columns));
    return line.substr(4);
  };
  const std::string bar = "[#.......................] ", fields = "loss 3.0412, gnorm 0.412, lr 1.00e-03";
  CHECK(at(114) == "train: " + bar + "1000 of 20000 (5%), 2.00/s, eta 02:38:20, " + fields);
  CHECK(at(113) == "train: 1000 of 20000 (5%), 2.00/s, eta 02:38:20, " + fields);
  CHECK(at(80) == "train: 1000 of 20000 (5%), eta 02:38:20, " + fields);
  CHECK(at(78) == "train: 1000 of 20000, eta 02:38:20, " + fields);
  CHECK(at(70) == "train: 1000 of 20000, eta 02:38:20, loss 3.0412, gnorm 0.412");
  CHECK(at(50) == "train: 1000 of 20000, eta 02:38:20, loss 3.0412");
  CHECK(at(30) == "train: 1000 of 20000, eta 02:");
  progress.end();
}

TEST_CASE("work in between has a bar of its own, and the task's time goes on", "[fast]") {
  Screen screen;
  TextProgress progress(screen.output(true));
  progress.begin("train", 48, Progress::Unit::count);
  screen.now = 10;
  progress.update(20, "loss 2.9");
  progress.begin_part("validation", 8, Progress::Unit::count);
  screen.text.clear();
  screen.now = 14;
  progress.update(4, "");
  CHECK(screen.text == "\r\033[Kvalidation: [############............] 4 of 8 (50%), 1.00/s, eta 00:00:04");
  screen.now = 18;
  screen.text.clear();
  progress.end_part();
  CHECK(screen.text == "\r\033[Ktrain: [##########..............] 20 of 48 (41%), 1.11/s, eta 00:00:25, loss 2.9");
  progress.update(48, "");
  screen.now = 50;
  screen.text.clear();
  progress.end();
  CHECK(screen.text == "\r\033[Ktrain: [########################] 48 of 48 (100%), 0.96/s, took 00:00:50\n");
}

TEST_CASE("an end within a part is that of the task", "[fast]") {
  Screen screen;
  TextProgress progress(screen.output(true));
  progress.begin("train", 48, Progress::Unit::count);
  progress.begin_part("validation", 8, Progress::Unit::count);
  screen.now = 3;
  screen.text.clear();
  progress.end();
  CHECK(screen.text == "\r\033[Ktrain: [........................] 0 of 48 (0%), took 00:00:03\n");
}

TEST_CASE("who knows the time left better than the rate says it", "[fast]") {
  Screen screen;
  TextProgress progress(screen.output(true));
  progress.begin("train", 48, Progress::Unit::count);
  screen.now = 6;
  screen.text.clear();
  progress.time_left(100);
  progress.update(12, "");
  CHECK(screen.text == "\r\033[Ktrain: [######..................] 12 of 48 (25%), 2.00/s, eta 00:01:40");
  progress.end();
}

TEST_CASE("unknown totals show no share and no time left", "[fast]") {
  Screen screen;
  TextProgress progress(screen.output(false));
  progress.begin("count", 0, Progress::Unit::count);
  screen.now = 20;
  progress.update(3000000, "");
  CHECK(screen.text == "count: 0\ncount: 3000000, 150000/s\n");
}

TEST_CASE("bytes and durations are written for people", "[fast]") {
  CHECK(format_bytes(1023) == "1023 B");
  CHECK(format_bytes(1536) == "1.5 KiB");
  CHECK(format_bytes(5.0 * 1024 * 1024 * 1024 * 1024 * 1024) == "5120.0 TiB");
  CHECK(format_duration(-1) == "00:00:00");
  CHECK(format_duration(3661.9) == "01:01:01");
  CHECK(format_duration(2 * 86400 + 3 * 3600) == "2d 03:00:00");
}
