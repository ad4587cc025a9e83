#include "train/metrics_file.h"

#include <cmath>

#include "tests/temp_folder.h"
#include "tests/thrown.h"

FOLDER_TEST("metrics of later steps and a cut line are removed when a run goes on", "[fast]") {
  const std::string kept =
      "{\"step\":1,\"loss\":2.0}\n{\"step\":2,\"loss\":1.5}\n{\"step\":2,\"val\":\"v\",\"loss\":1.0}\n";
  const fs::path path =
      folder.write("metrics.jsonl", kept + "{\"step\":3,\"loss\":1.0}\n{\"step\":3,\"val\":\"w\"}\n{\"step\":4,\"lo");
  {
    MetricsFile metrics(path, 2);
    CHECK(metrics.removed_lines() == 3);
    CHECK(metrics.validated() == std::set<std::string>{"v"});
    metrics.add(Json::object({{"step", Json(3)}, {"loss", Json(std::nan(""))}, {"grad_norm", Json(-INFINITY)}}));
  }
  CHECK(read_file(path) == kept + "{\"step\":3,\"loss\":\"nan\",\"grad_norm\":\"-inf\"}\n");
}

FOLDER_TEST("a metrics line with a changed step is an error, and no line is lost", "[fast]") {
  const std::string text = "{\"step\":5}\n{\"step\":2}\n";
  const fs::path path = folder.write("metrics.jsonl", text);
  CHECK_THAT(thrown<CheckpointError>([&] { MetricsFile(path, 2); }),
             Contains("metrics.jsonl:2: steps of metrics lines out of order (found step 2 after step 5"));
  CHECK(read_file(path) == text);
}

FOLDER_TEST("each line of metrics is in the file as soon as it is added", "[fast]") {
  MetricsFile metrics(folder / "metrics.jsonl", 0);
  metrics.add(Json::object({{"step", Json(1)}}));
  CHECK(read_file(folder / "metrics.jsonl") == "{\"step\":1}\n");
}

FOLDER_TEST("a metrics file with a foreign line is an error that names the line", "[fast]") {
  const fs::path path = folder.write("metrics.jsonl", "{\"step\":1}\nhello\n");
  CHECK_THAT(thrown<CheckpointError>([&] { MetricsFile(path, 5); }), Contains("metrics.jsonl:2") && Contains("hello"));
  for (const char* line : {"1", "[]", "{}", "{\"step\":18446744073709551615}", "{\"step\":1.5}"}) {
    folder.write("metrics.jsonl", std::string(line) + "\n");
    CHECK_THAT(thrown<CheckpointError>([&] { MetricsFile(path, 5); }), Contains("metrics.jsonl:1") && Contains(line));
  }
}

TEST_CASE("an append that fails says which file", "[fast]") {
  CHECK_THROWS_WITH(AppendFile("/nonexistent/metrics.jsonl"),
                    Contains("/nonexistent/metrics.jsonl") && Contains("No such"));
  if (fs::exists("/dev/full")) {
    AppendFile full("/dev/full");
    CHECK_THROWS_WITH(full.append("x"), Contains("/dev/full") && Contains("No space"));
  }
}
