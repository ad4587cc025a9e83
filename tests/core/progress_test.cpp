#include "core/progress.h"

#include "tests/test.h"

using namespace hebb;

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
  progress.begin("train", 48, Progress::Unit::count);
  progress.skip(24);
  screen.text.clear();
  screen.now = 6.0;
  progress.update(36, "loss 2.9");
  CHECK(screen.text == "\r\033[Ktrain: [##################......] 36 of 48 (75%), 2.00/s, eta 00:00:06, loss 2.9");
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
  CHECK(screen.text == "\r\033[Kgröße: 3, 3");  // 11 of 12 columns
  progress.end();
}

TEST_CASE("a narrow terminal shows the numbers instead of the bar", "[fast]") {
  Screen screen;
  screen.columns = 40;
  TextProgress bar(screen.output(true));
  bar.begin("train", 48, Progress::Unit::count);
  CHECK(screen.text == "\r\033[Ktrain: 0 of 48 (0%)");
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
