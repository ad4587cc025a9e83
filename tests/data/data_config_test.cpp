#include "data/rows/data_config.h"

#include "core/error.h"
#include "tests/test.h"
#include "tests/thrown.h"

namespace {

DataConfig read_config(const std::string& text) {
  return Fields::read<DataConfig>(parse_json(text, "run.json"), "data");
}

std::string error_of(const std::string& text) {
  return thrown<ConfigError>([&] { read_config(text); });
}

std::string task_error(const SyntheticConfig& config) {
  return thrown<ConfigError>([&] { resolve_task(config, "data.sources.0", 7, 64, 12); });
}

}  // namespace

TEST_CASE("the data section of the documentation is read", "[fast]") {
  const DataConfig config = read_config(R"({
    "seed": 1234,
    "sources": [ {"path": "/d/lc64/", "weight": 1.0, "packing": "stream", "shuffle": "rows"},
                 {"path": "/d/fineweb/", "weight": "rows"} ],
    "validation": [ {"name": "lc64", "path": "/d/lc64/val_*.bin", "max_rows": 256} ],
    "tokenizer": {"type": "bytes"} })");
  CHECK(config.seed == 1234);
  REQUIRE(config.sources.size() == 2);
  CHECK(config.sources[0].path == "/d/lc64/");
  CHECK(config.sources[0].weight.as_double() == 1.0);
  CHECK(config.sources[1].weight.as_string() == "rows");
  CHECK(config.sources[1].format == "auto");
  REQUIRE(config.validation.size() == 1);
  CHECK(config.validation[0].name == "lc64");
  CHECK(config.validation[0].max_rows == 256);
  CHECK(config.tokenizer.at("type").as_string() == "bytes");
}

TEST_CASE("packing keys come from the source, then from data, then from the defaults", "[fast]") {
  const DataConfig config = read_config(R"({
    "packing": "document", "shuffle": "documents", "min_document_tokens": 9, "document_rows": "first", "tail": "pad",
    "split_token": 3, "split": "before", "mask_cross_document_targets": false,
    "sources": [ {"path": "/a"}, {"path": "/b", "packing": "block", "shuffle": "documents+rows",
      "min_document_tokens": 0, "document_rows": "all", "tail": "drop", "split_token": 0, "split": "after",
      "mask_cross_document_targets": true} ] })");
  const PackingOptions inherited = resolve_packing(config.sources[0].packing, config.packing, true);
  CHECK(inherited.packing == Packing::document);
  CHECK((inherited.shuffle_documents && !inherited.shuffle_rows));
  CHECK(inherited.min_document_tokens == 9);
  CHECK(inherited.first_row_only);
  CHECK(inherited.pad_tail);
  CHECK(!inherited.mask_cross_document_targets);
  const PackingOptions own = resolve_packing(config.sources[1].packing, config.packing, false);
  CHECK(own.packing == Packing::block);
  CHECK((own.shuffle_documents && own.shuffle_rows));
  CHECK(own.min_document_tokens == 0);
  CHECK(!own.first_row_only);
  CHECK(!own.pad_tail);
  CHECK(own.mask_cross_document_targets);
  CHECK(resolve_shard_options(config.sources[0], config.packing).split_token == 3);
  CHECK(resolve_shard_options(config.sources[0], config.packing).split_before);
  CHECK(resolve_shard_options(config.sources[1], config.packing).split_token == 0);
  CHECK(!resolve_shard_options(config.sources[1], config.packing).split_before);

  const PackingOptions defaults = resolve_packing({}, {}, true);
  CHECK(defaults.packing == Packing::stream);
  CHECK((!defaults.shuffle_documents && defaults.shuffle_rows));
  CHECK(defaults.min_document_tokens == 0);
  CHECK(defaults.mask_cross_document_targets);
  CHECK(!resolve_packing({}, {}, false).mask_cross_document_targets);
}

TEST_CASE("a synthetic source takes what it does not set from the run", "[fast]") {
  const DataConfig config = read_config(R"({"sources": [
    {"type": "synthetic", "task": "icr_basic", "seed": 1, "lengths": [512, 1024], "length_block": 64, "vocab": 500,
     "word": 3, "queries": 2, "weight": 2},
    {"type": "synthetic", "task": "mqar", "pairs": 5, "filler": false},
    {"type": "synthetic", "task": "icl", "functions": 4, "dim": 3, "x_max": 10, "coef_max": 4}]})");
  const SyntheticTask icr = resolve_task(config.sources[0].synthetic, "data.sources.0", 7, 1024, 12);
  CHECK(icr.seed == 1);
  CHECK(icr.lengths == std::vector<int64_t>{512, 1024});
  CHECK(icr.length_block == 64);
  CHECK(icr.vocab == 500);
  CHECK(icr.word == 3);
  CHECK(icr.queries == 2);
  const SyntheticTask mqar = resolve_task(config.sources[1].synthetic, "data.sources.1", 7, 64, 12);
  CHECK(mqar.seed == 7);
  CHECK(mqar.lengths == std::vector<int64_t>{64});
  CHECK(mqar.length_block == 12);
  CHECK(mqar.vocab == 8192);
  CHECK(mqar.pairs == 5);
  CHECK(!mqar.filler);
  const SyntheticTask icl = resolve_task(config.sources[2].synthetic, "data.sources.2", 7, 64, 12);
  CHECK(icl.functions == 4);
  CHECK(icl.dim == 3);
  CHECK(icl.x_max == 10);
  CHECK(icl.coef_max == 4);
}

TEST_CASE("the resolved section reads back as itself", "[fast]") {
  for (const char* text :
       {R"({"sources": [{"path": "/a", "weight": "rows", "split_token": 4}], "packing": "document", "tail": "pad"})",
        R"({"seed": 3, "sources": [{"type": "synthetic", "task": "icl", "length": 52}],
                              "validation": [{"name": "v", "path": "/v", "format": "raw_u16"}]})"}) {
    const Json written = Fields::write(read_config(text));
    CHECK(Fields::write(read_config(written.dump(2))) == written);
  }
}

TEST_CASE("wrong data sections name the key, what was found and what was expected", "[fast]") {
  const auto check = [](const std::string& text, const char* message) {
    INFO(text);
    CHECK_THAT(error_of(text), Contains(message));
  };
  const std::string of_paths = R"({"sources": [{"path": "/a", )", of_tasks = R"({"sources": [{"type": "synthetic", )";
  const std::string validation = R"({"sources": [{"path": "/a"}], "validation": [)";
  check("{}", "data.sources: found nothing");
  check(R"({"sources": []})",
        "data.sources: found an empty list, expected a list of objects with at least one element");
  check(R"({"sources": [{}]})", "data.sources.0.path: found nothing");
  check(of_paths + R"("weight": 0}]})", "data.sources.0.weight: found 0, expected a number > 0, or \"rows\"");
  check(of_paths + R"("weight": "tokens"}]})", "found \"tokens\", expected a number > 0, or \"rows\"");
  check(of_paths + R"("packing": "row"}]})", "data.sources.0.packing: found \"row\"");
  check(of_paths + R"("shufle": "rows"}]})", "\"shuffle\"");
  check(of_paths + R"("task": "mqar"}]})", "data.sources.0.task");
  check(of_paths + R"("format": "raw"}]})", "data.sources.0.format: found \"raw\"");
  check(of_paths + R"("split_token": -1}]})", "data.sources.0.split_token: found -1");
  check(of_paths + R"("tail": "pad"}]})", "data.sources.0.tail: \"pad\" needs packing \"document\"");
  check(of_paths + R"("document_rows": "first", "packing": "block"}]})", "data.sources.0.document_rows");
  check(of_paths + R"("split": "before"}]})", "data.sources.0.split: \"before\" needs split_token");
  check(R"({"sources": [{"path": "/a"}], "tail": "pad"})", "data.tail: \"pad\" needs");
  check(of_tasks + R"("task": "copy"}]})", "data.sources.0.task: found \"copy\"");
  check(of_tasks + R"("task": "mqar", "word": 4}]})", "data.sources.0.word");
  check(of_tasks + R"("task": "icr_basic", "length_block": 4}]})", "data.sources.0.length_block: needs lengths");
  check(of_tasks + R"("task": "mqar", "weight": "rows"}]})", "a synthetic source has no end");
  check(of_tasks + R"("task": "mqar", "path": "/a"}]})", "data.sources.0.path");
  check(validation + R"({"path": "/v"}]})", "data.validation.0.name: found nothing");
  check(validation + R"({"name": "v", "path": "/v", "shuffle": "rows"}]})", "data.validation.0.shuffle");
  check(validation + R"({"name": "v", "type": "synthetic", "task": "icl"}]})", "data.validation.0.max_rows");
  check(validation + R"({"name": "v", "path": "/v"}, {"name": "v", "path": "/w"}]})",
        "data.validation: two sources have the name \"v\"");
}

TEST_CASE("all 64 bits of a seed count", "[fast]") {
  const DataConfig config = read_config(
      R"({"seed": 18446744073709551615, "sources": [{"type": "synthetic", "task": "mqar", "seed": 9223372036854775808}]})");
  CHECK(config.seed == UINT64_MAX);
  CHECK(resolve_task(config.sources[0].synthetic, "s", 0, 64, 1).seed == uint64_t{1} << 63);
  CHECK(Fields::write(config).at("seed").as_uint() == UINT64_MAX);
  CHECK(read_config(R"({"seed": 1e3, "sources": [{"path": "/a"}]})").seed == 1000);
  CHECK_FALSE(read_config(R"({"seed": null, "sources": [{"path": "/a"}]})").seed);
  for (const char* seed : {"-1", "0.5", "\"1\"", "1e+30", "true"}) {
    const std::string text = std::string("{\"seed\": ") + seed + R"(, "sources": [{"path": "/a"}]})";
    CHECK_THAT(error_of(text), Contains("data.seed: found " + std::string(seed)));
  }
}

TEST_CASE("lengths that do not fit the run are reported", "[fast]") {
  SyntheticConfig config;
  config.task.task = "icr_basic";
  config.lengths = {64, 65};
  CHECK(task_error(config) == "data.sources.0.lengths: found 65, expected at most train.sequence_length = 64");
  config.length = 60;
  CHECK(task_error(config) == "data.sources.0.length: give either length or lengths, not both");
  config.lengths.clear();
  CHECK(task_error(config).starts_with("data.sources.0.length: found 60, expected at least 217 tokens"));
}
