#include <sstream>

#include "core/files.h"
#include "tests/e2e/command.h"
#include "train/choose_device.h"

FOLDER_TEST("the configuration reference in docs/ is what the schema says", "[fast]") {
  INFO("after a change of the schema: hebb doctor --configuration-reference > docs/configuration-reference.md");
  std::istringstream printed(output_of(folder, "doctor --configuration-reference"));
  std::istringstream page(read_file(fs::path(HEBB_SOURCE) / "docs" / "configuration-reference.md"));
  std::string expected, found;
  int line = 0;
  while (std::getline(printed, expected)) {  // the first line that differs, not both files
    INFO("docs/configuration-reference.md:" << ++line);
    REQUIRE((std::getline(page, found) ? found : "the end of the file") == expected);
  }
  CHECK_FALSE(std::getline(page, found));
}

FOLDER_TEST("auto says why it has taken the CPU, in a build that could take a GPU", "[fast]") {
#ifdef HEBB_HAVE_CUDA
  const std::string problem = gpu_problem();
#else
  const std::string problem;  // nobody who has built without CUDA expects a GPU
#endif
  const std::string line = "device: cpu, precision fp32 (--device is auto " + problem + ")\n";
  CHECK(run_hebb(folder, "selftest relu2").err == (problem.empty() ? "" : line));
  CHECK(run_hebb(folder, "selftest relu2 --device cpu").err.empty());
}

FOLDER_TEST("doctor, plan, bench and report say what is wrong with their arguments", "[fast]") {
  CHECK_THAT(run_hebb(folder, "doctor").out, Contains("layers"));
  check_error(folder, "plan nothing.json", 2, Contains("nothing.json"));
  folder.write("sweep.json", R"({"name": "s", "runs": []})");
  CHECK_THAT(run_hebb(folder, "train sweep.json").err, Contains("found a sweep (it has \"runs\", "));
  for (const char* verb : {"generate x", "eval x --checkpoint y", "bench", "selftest", "trace m --rows r --out o"}) {
    CHECK_THAT(run_hebb(folder, verb + std::string(" --threads 100000")).err,
               Contains("--threads: found 100000, expected an integer from 0 to 1024"));
  }
  CHECK_THAT(run_hebb(folder, "bench no-such-model --steps 1").err, Contains("no-such-model"));
  CHECK_THAT(run_hebb(folder, "selftest relu2 --device cpu").out, Contains("all 1 passed"));
  CHECK_THAT(run_hebb(folder, "selftest relu2 optimizer --device cpu --json").out, Contains("\"failed\": 0"));
  CHECK_THAT(run_hebb(folder, "selftest relu --device cpu").err, Contains("one of attention, swiglu, relu2"));
  CHECK(run_hebb(folder, "selftest --device cpu --precision fp64").code == 2);
  check_error(folder, "report missing-run", 3, Contains("missing-run"));
  CHECK(run_hebb(folder, "report a b ./a").err == "error: hebb report: found ./a twice, expected different runs\n");
  folder.write("ladder/sweep.json", R"({"name": "s", "runs": []})");
  CHECK(run_hebb(folder, "report ladder --by arch --y val.x").err ==
        "error: hebb report: the sweep of a ladder has tags and fit; leave out --by, --y\n");
  CHECK(run_hebb(folder, "trace m.json --rows r --out o --precision bf16").code == 2);
}

FOLDER_TEST("plan counts the parameters, FLOPs and state of a model object", "[fast]") {
  folder.write(
      "m.json",
      R"({"vocab_size": 32000, "hidden_size": 768, "num_layers": 12, "norm": "rms_unit_offset", "tie_embeddings": true,
    "layers": {"gdn": {"type": "gdn", "num_heads": 8, "key_head_dim": 64, "value_head_dim": 64, "dt_bias_init": "ones"},
               "mlp": {"type": "swiglu", "intermediate_size": 2304}},
    "pattern": [{"mixer": "gdn", "ffn": "mlp"}]})");
  CHECK_THAT(output_of(folder, "plan m.json --json"), Contains("\"total\": 112111296"));
  CHECK_THAT(run_hebb(folder, "plan m.json m.json").out, Contains("112.11M"));
}

FOLDER_TEST("plan takes a sweep, leaves sweeps out among other files, and plans for a GPU that is not here", "[fast]") {
  folder.write("run.json", R"({"name": "r", "model": {"vocab_size": 32, "hidden_size": 16, "num_layers": 1,
    "layers": {"a": {"type": "attention", "num_heads": 1, "head_dim": 16}, "m": {"type": "swiglu", "intermediate_size": 16}},
    "pattern": [{"mixer": "a", "ffn": "m"}]},
    "data": {"sources": [{"type": "synthetic", "task": "mqar", "vocab": 32, "pairs": 2, "seed": 1}]},
    "train": {"steps": 4, "batch_size": 8, "sequence_length": 16}, "optimizer": {"lr": 1e-3}})");
  folder.write("sweep.json", R"({"name": "s", "base": "run.json", "grid": {"train.batch_size": [8, 16, 24]}})");
  const auto alone = run_hebb(folder, "plan sweep.json");
  CHECK(alone.code == 0);
  CHECK_THAT(alone.out, Contains("batch_size=8") && Contains("batch_size=16") && Contains("batch_size=24"));
  const auto among = run_hebb(folder, "plan run.json sweep.json");
  CHECK(among.code == 0);
  CHECK(among.err == "left out, a sweep: sweep.json (hebb plan sweep.json)\n");
  CHECK_THAT(among.out, Contains("FLOPs per token") && !Contains("batch_size=24"));
  check_error(folder, "plan sweep.json train.steps=3", 2, Contains("found a sweep with train.steps=3"));
  check_error(folder, "plan sweep.json sweep.json", 2, Contains("expected one sweep alone"));
  check_error(folder, "plan run.json --gpu b1000", 2, Contains("--gpu: found \"b1000\", expected one of h100"));
  CHECK_THAT(run_hebb(folder, "plan run.json --gpu h100").out,
             Contains("device cuda, precision bf16") && Contains("largest micro-batch that fits") &&
                 Contains("time at an estimate: 40 % of the H100 peak of 989 TFLOP/s"));
  CHECK_THAT(run_hebb(folder, "plan run.json --gpu h100 --tflops 100").out, Contains("time at the given speed"));
  CHECK_THAT(run_hebb(folder, "plan sweep.json --gpu h100").out, Contains("time: an estimate: 40 %"));
  CHECK_THAT(run_hebb(folder, "plan run.json --ranks 4 --tflops 1e-6").out, Contains("GPU hours"));
  CHECK_THAT(run_hebb(folder, "plan sweep.json --ranks 2").out, Contains("ranks") && Contains("batch_size=24"));
  folder.write("memory.json",
               R"({"extends": "run.json", "train": {"fast_batch": 8, "micro_batch_size": 4}, "model": {"layers": {
    "w": {"type": "fwpkm", "num_subkeys": 4, "key_dim": 4, "value_dim": 4, "top_k": 2, "chunk_size": 4}}, "at": {"0": {"memory": "w"}}}})");
  CHECK_THAT(run_hebb(folder, "plan memory.json --ranks 2").out, Contains("for 2 lanes: 2;"));
  check_error(folder, "plan memory.json", 2, Contains("expected 4, the rows of a micro-batch; 2 ranks have 8"));
  check_error(folder, "plan run.json --ranks 8 train.micro_batch_size=2", 2,
              Contains("with 8 lanes micro-batches of 1 row do"));
  CHECK_THAT(run_hebb(folder, "ladder sweep.json --dry-run --gpu h100 --parallel 2").out,
             Contains("cuda") && Contains("with 2 at a time; ") && Contains("GPU hours"));
}
