#include "train/run_config.h"

#include "tests/paths.h"
#include "tests/temp_folder.h"
#include "tests/test.h"
#include "tests/thrown.h"
#include "train/choose_device.h"

namespace {

const char* kRun = R"({
 "name": "small",
 "model": {"vocab_size": 50, "hidden_size": 16, "num_layers": 2,
   "layers": {"mix": {"type": "gdn", "num_heads": 2, "key_head_dim": 4, "value_head_dim": 4},
              "mlp": {"type": "swiglu", "intermediate_size": 20}},
   "pattern": [{"mixer": "mix", "ffn": "mlp"}]},
 "data": {"sources": [{"path": "data/tokens.bin"}]},
 "train": {"steps": 10, "batch_size": 6, "sequence_length": 32},
 "optimizer": {"lr": 1e-3}
})";

RunConfig read(const TempFolder& folder, const std::vector<std::string>& overrides = {}, bool resolved = true) {
  RunConfig config = read_run_config(folder.write("sub/run.json", kRun).string(), overrides);
  if (resolved) { resolve(config); }
  return config;
}

}  // namespace

FOLDER_TEST("what a run configuration leaves open is filled by its batch and device", "[fast]") {
  const RunConfig c = read(folder, {"train.device=cpu"});  // which decides the precision
  CHECK(c.train.micro_batch_size == 6);
  CHECK(c.train.precision == "fp32");
  CHECK_FALSE(c.train.random_window);
}

FOLDER_TEST("a known key in the wrong section is told where it belongs", "[fast]") {
  CHECK_THROWS_WITH(read(folder, {"lr=0.1"}),
                    Contains("command line: lr: found an unknown key") && Contains("; elsewhere: optimizer.lr, "));
  CHECK_THROWS_WITH(read(folder, {"optimizer.batch_size=2"}), Contains("; elsewhere: train.batch_size"));
  CHECK_THROWS_WITH(read(folder, {"train.qwertz=2"}), Contains("unknown key") && !Contains("elsewhere"));
  CHECK_THROWS_WITH(read(folder, {"train.qwertz=2", "train.seed=-1", "lr=2"}),
                    Contains("train.seed: found -1, expected an integer >= 0\n") &&
                        Contains("train.qwertz: found an unknown key") && Contains("; elsewhere: optimizer.lr, "));
  CHECK_THROWS_WITH(read(folder, {"train.deterministic=true"}), Contains("unknown key"));
}

FOLDER_TEST("an error that ends the reading of one section does not hide those of the others", "[fast]") {
  std::string message;
  try {
    read(folder, {"model.layers.mix.type=gnd", "train.device=tpu", "optimizer.lr=-1", "schedule.warmup=3"}, false);
  } catch (const ConfigError& error) { message = error.what(); }
  for (const char* path : {"model.layers.mix.type: ", "train.device: ", "optimizer.lr: ", "schedule.warmup: "}) {
    INFO(message);
    CHECK_THAT(message, Contains(path));
    CHECK(message.find(path) == message.rfind(path));
  }
}

FOLDER_TEST("an unknown section is named beside an error that ends the reading", "[fast]") {
  CHECK_THROWS_WITH(
      read(folder, {"traim.steps=3", "schedule.decay=cosine"}, false),
      Contains("schedule.decay: ") && Contains("traim: found an unknown key") && Contains("did you mean \"train\""));
}

FOLDER_TEST("paths are absolute against the file that wrote them", "[fast]") {
  CHECK(read(folder).data.sources[0].path == (folder / "sub/data/tokens.bin").string());
}

FOLDER_TEST("a resolved configuration reads back as itself", "[fast]") {
  const Json resolved =
      to_json(read(folder, {"train.random_window={\"p\": 0.9, \"window\": 5}", "schedule.type=wsd",
                            "eval={\"evaluations\": [{\"name\": \"a\", \"kind\": \"mqar\"}]}",
                            "optimizer.groups=[{\"match\": \"a\", \"lr\": 0.5}]", "train.tokens=1900"}));
  const fs::path file = folder.write("elsewhere/resolved.json", resolved.dump(1));
  RunConfig again = read_run_config(file.string());
  resolve(again);
  CHECK(to_json(again) == resolved);
  CHECK(config_hash(to_json(again)) == config_hash(resolved));
  CHECK(compare_configs(resolved, to_json(again)).empty());
}

FOLDER_TEST("tokens give the steps, and both must agree", "[fast]") {
  const auto steps = [&](const std::string& tokens) {
    Json json = parse_json(kRun, "run.json");
    json.find("train")->erase("steps");
    json.find("train")->set("tokens", parse_json(tokens, "t"));
    return Fields::read<RunConfig>(json, "").train.steps;
  };
  CHECK(steps("1") == 1);
  CHECK(steps("192") == 1);
  CHECK(steps("193") == 2);
  CHECK(steps("1e6") == 5209);
  CHECK(read(folder, {"train.tokens=1900"}).train.steps == 10);
  CHECK_THROWS_WITH(read(folder, {"train.tokens=1921"}), Contains("train.steps: found 10, expected 11"));
  CHECK_THROWS_WITH(read(folder, {"train={\"batch_size\": 1, \"sequence_length\": 2}"}),
                    Contains("train.steps: found nothing"));
}

FOLDER_TEST("values that cannot work are refused with file, line and path", "[fast]") {
  const std::string at = (folder / "sub/run.json").string() + ":8:";
  CHECK_THROWS_WITH(read(folder, {"train.batch_size=0"}),
                    Contains("train.batch_size: found 0, expected an integer >= 1"));
  CHECK_THROWS_WITH(read(folder, {"train.micro_batch_size=4"}),
                    Contains("train.micro_batch_size: found 4 rows in 1 lane") && Contains("= 6"));
  CHECK_THROWS_WITH(read(folder, {"train.fast_batch=3"}), Contains("train.fast_batch: found 3, expected 6"));
  CHECK_THROWS_WITH(read(folder, {"train.steps_per_epoch=3"}), Contains("unknown key"));
  CHECK_THROWS_WITH(read(folder, {"train.bach_size=3"}), Contains("batch_size"));
  CHECK_THROWS_WITH(read(folder, {"name=a/b"}), Contains("name: found \"a/b\""));
  CHECK_THROWS_WITH(
      read(folder, {"schedule={\"type\": \"wsd\", \"warmup_steps\": 9}"}),
      Contains("schedule.warmup_steps: found 9 with 2 decay steps") && Contains("at most train.steps = 10"));
  CHECK_THROWS_WITH(read(folder, {"train.random_window={\"p\": 2, \"window\": 5}"}), Contains("train.random_window.p"));
  Json json = parse_json(kRun, "run.json");
  json.erase("optimizer");
  CHECK_THROWS_WITH(Fields::read<RunConfig>(json, ""), Contains("optimizer"));
}

FOLDER_TEST("sizes whose product no number holds are refused with their keys", "[fast]") {
  const auto error = [&](const std::vector<std::string>& overrides) {
    return thrown<ConfigError>([&] { read(folder, overrides); });
  };
  for (const char* key : {"model.vocab_size", "model.hidden_size", "model.layers.mix.num_heads",
                          "model.layers.mix.key_head_dim", "model.layers.mlp.intermediate_size"}) {
    for (const char* value : {"2147483648", "1099511627776", "4611686018427387904", "9223372036854775807", "1e18"}) {
      INFO(key << "=" << value);
      CHECK_THAT(error({std::string(key) + "=" + value}),
                 Contains(std::string(key) + ": found ") && Contains("expected an integer below 2^31"));
    }
  }
  for (const char* key : {"train.batch_size", "train.micro_batch_size", "train.lanes", "train.fast_batch"}) {
    CHECK_THAT(error({std::string(key) + "=2147483648"}), Contains(key) && Contains("and <= 2147483647"));
  }
  CHECK_THAT(error({"train.sequence_length=1099511627776"}), Contains("train.sequence_length: found 1099511627776"));
  CHECK_THAT(error({"train.batch_size=4294967296", "train.sequence_length=4294967296", "train.tokens=100"}),
             Contains("found 4294967296"));
  CHECK_THAT(
      error({"train.batch_size=2147483647", "train.sequence_length=67108864"}),
      Contains("train.batch_size: found 2147483647 with sequence_length 67108864, expected a product of at most 2^40"));
  CHECK_THAT(error({"train.batch_size=16384", "train.sequence_length=67108864", "train.steps=1000000000000"}),
             Contains("train.steps: found 1000000000000 with batch_size 16384") && Contains("at most 2^60"));
}

FOLDER_TEST("names with control characters are refused where they are read", "[fast]") {
  for (const char* name : {"a\\u0000b", "a\\u001b[31m", "a\\nb", "a\\u009b"}) {
    INFO(name);
    CHECK_THROWS_WITH(read(folder, {std::string("name=\"") + name + "\""}),
                      Contains("a name without / and control characters"));
    CHECK_THROWS_WITH(read(folder, {std::string(R"(data.validation=[{"path": "v.bin", "name": ")") + name + "\"}]"}),
                      Contains("data.validation.0.name") && Contains("a name without control characters"));
  }
}

FOLDER_TEST("the evaluations of a run are read by the function that is given", "[fast]") {
  const std::string file = folder.write("run.json", kRun).string();
  const RunConfig config =
      read_run_config(file, {R"(eval={"evaluations": []})"}, [](const Json& json, const std::string& path) {
        CHECK(path == "eval.");
        return Json::object({{"read", json}});
      });
  CHECK(config.eval.at("read").at("evaluations").items().empty());
}

FOLDER_TEST("a sweep is no run, and the verb that trains it is named", "[fast]") {
  const std::string sweep = folder.write("s.json", R"({"name": "s", "base": "b.json", "grid": {"train.seed": [1]}})");
  CHECK_THROWS_WITH(read_run_config(sweep), sweep +
                                                ": found a sweep (it has \"runs\", \"axes\" or \"grid\"), expected "
                                                "the configuration of one run; hebb ladder trains the runs of a sweep, "
                                                "hebb plan plans them");
}

TEST_CASE("micro-batches that divide a batch into lanes are proposed", "[fast]") {
  CHECK(micro_batches_that_divide(48, 8) == "with 8 lanes micro-batches of 6, 3, 2, 1 rows do");
  CHECK(micro_batches_that_divide(4, 4) == "with 4 lanes micro-batches of 1 row do");
  CHECK(micro_batches_that_divide(50, 8) == "a batch of 48 rows can be divided into 8 lanes");
  CHECK(micro_batches_that_divide(3, 8) == "a batch of 8 rows can be divided into 8 lanes");
}

FOLDER_TEST("devices and precisions that this build does not have are errors, never replaced", "[fast]") {
#ifndef HEBB_HAVE_CUDA
  CHECK_THROWS_WITH(read(folder, {"train.device=cuda"}), Contains("train.device: found \"cuda\""));
#endif
  CHECK(read(folder, {"train.device=cpu", "train.precision=bf16"}).train.precision == "bf16");
  CHECK(read(folder, {"train.precision=fp64"}).train.precision == "fp64");
  CHECK_THROWS_WITH(choose_compute("cpu", "fp16", "--"), Catch::Matchers::StartsWith("--precision: found \"fp16\""));
}

TEST_CASE("a variable of the environment that would change matrix products on a GPU is refused there", "[fast]") {
  const std::string name =
      GENERATE("NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATION_STRATEGY");
  const auto choose = [&](const char* value, const char* device, bool runs) {
    ::setenv(name.c_str(), value, 1);
    std::string error = "no error";
    try {
      choose_compute(device, "fp32", "--", runs);
    } catch (const ConfigError& e) { error = e.what(); }
    ::unsetenv(name.c_str());
    return error;
  };
  for (const char* value : {"1", "0"}) {  // 0 would take back what train.allow_tf32 permits
    CHECK_THAT(choose(value, "cuda", true),
               Catch::StartsWith("environment variable " + name + ": found \"" + value + "\", expected none"));
  }
  CHECK_THAT(choose("", "cuda", true), !Contains(name));
  CHECK(choose("1", "cpu", true) == "no error");
  CHECK(choose("1", "cuda", false) == "no error");  // a plan computes nothing there
}

FOLDER_TEST("configurations are compared path by path, without what a resumed run may change", "[fast]") {
  const Json stored = to_json(read(folder));
  const Json current =
      to_json(read(folder, {"name=other", "train.steps=99", "train.checkpoint.every=3", "train.threads=1",
                            "eval={\"evaluations\": []}", "train.cuda_graphs=false", "train.autotune=false",
                            "data.sources.0.path=elsewhere.bin", "data.validation=[{\"name\": \"v\", \"path\": \"x\"}]",
                            "optimizer.betas=[0.9, 0.99]", "model.layers.mlp.intermediate_size=21", "train.seed=3"}));
  std::vector<std::string> paths;
  for (const ConfigDifference& d : compare_configs(stored, current)) {
    paths.push_back(d.path + " " + d.stored + " " + d.current);
  }
  CHECK(paths == std::vector<std::string>{"model.layers.mlp.intermediate_size 20 21", "train.seed 0 3",
                                          "optimizer.betas.1 0.95 0.99"});
}

TEST_CASE("the configuration hash is FNV-1a of the canonical JSON", "[fast]") {
  CHECK(config_hash(parse_json(R"({"b": 1, "a": [true]})", "t")) ==
        config_hash(parse_json(R"({"a":[true],"b":1})", "t")));
  CHECK(config_hash(Json::object()) == "08f44b07b5901a25");  // of "{}"
}

FOLDER_TEST("the tokenizer of the data is that of the first source unless given", "[fast]") {
  CHECK(read(folder).data.tokenizer.is_null());
  const RunConfig c = read(folder, {"data.tokenizer={\"type\": \"bytes\"}", "model.vocab_size=259"});
  CHECK(c.data.tokenizer.at("type").as_string() == "bytes");
  CHECK_THROWS_WITH(read(folder, {"data.tokenizer={\"typ\": \"bytes\"}"}), Contains("data.tokenizer.typ"));
}

FOLDER_TEST("a tokenizer with more ids than the model is refused before training, as eval refuses it", "[fast]") {
  const auto with = [&](const char* vocab_size) {
    RunConfig c = read(folder, {"data.tokenizer={\"type\": \"bytes\"}", std::string("model.vocab_size=") + vocab_size});
    resolve(c);
  };
  CHECK_THROWS_WITH(with("258"), Catch::EndsWith("model.vocab_size: found 258, expected at least 259, the ids of the "
                                                 "tokenizer bytes"));
  CHECK_NOTHROW(with("259"));
}

FOLDER_TEST("train.zero 2 and 3 are refused with the reason", "[fast]") {
  CHECK_NOTHROW(read(folder, {"train.zero=1"}));
  CHECK_THROWS_WITH(read(folder, {"train.zero=2"}),
                    Contains("train.zero: found 2, expected 0 or 1: shards of gradients"));
  CHECK_THROWS_WITH(read(folder, {"train.zero=3"}), Contains("train.zero: found 3, expected 0 or 1: shards of values"));
  CHECK_THROWS_WITH(read(folder, {"train.zero=4"}), Contains("train.zero: found 4, expected 0 or 1"));
}
