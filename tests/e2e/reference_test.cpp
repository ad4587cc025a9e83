#include "core/files.h"
#include "tests/e2e/command.h"
#include "train/choose_device.h"

FOLDER_TEST("the configuration reference in docs/ is what the schema says", "[fast]") {
  INFO("after a change of the schema: hebb doctor --configuration-reference > docs/configuration-reference.md");
  CHECK(output_of(folder, "doctor --configuration-reference") ==
        read_file(fs::path(HEBB_SOURCE) / "docs" / "configuration-reference.md"));
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
  CHECK_THAT(run_hebb(folder, "plan sweep.json").err, Contains("found a sweep (it has \"runs\")"));
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
