#include "inspect/plan.h"

#include "kernels/common/cores.h"
#include "tests/test.h"
#include "tests/train/run_fixture.h"

namespace {

ModelConfig model_of(const std::string& text) {
  return Fields::read<ModelConfig>(parse_json(text, "model.json"), "model");
}

/// d 12, two blocks; SDM with 9 slots of 12 numbers, PKM with 4 rows of 3 and 2 x 2 keys of 2.
ModelConfig memory_model() {
  return model_of(R"({"vocab_size": 29, "hidden_size": 12, "num_layers": 2,
    "layers": {"sdm": {"type": "sdm", "slots_per_head": 9, "num_writes": 2, "num_reads": 2},
               "pkm": {"type": "pkm", "num_subkeys": 2, "key_dim": 4, "value_dim": 3, "num_heads": 1, "top_k": 1},
               "mlp": {"type": "swiglu", "intermediate_size": 10}},
    "pattern": [{"mixer": "sdm", "ffn": "mlp"}, {"mixer": "sdm", "ffn": "pkm"}]})");
}

}  // namespace

TEST_CASE("learned starts and tables are counted apart from the body", "[fast]") {
  const ModelConfig config = memory_model();
  const Model model(config);
  const ParameterCounts n = count_parameters(model);
  CHECK(n.state == 2 * 9 * 12);
  CHECK(n.memory == n.state + 4 * 3 + 2 * 2 * 2);
  CHECK(n.non_embedding == n.total - n.state - 2 * 29 * 12);
  CHECK(n.active == n.total - 3 * 3);
}

TEST_CASE("learned starting states of gdn and mamba2 count as parameters, not as state", "[fast]") {
  const Model model(model_of(R"({"vocab_size": 5, "hidden_size": 6, "num_layers": 2, "layers": {
    "gdn": {"type": "gdn", "num_heads": 2, "key_head_dim": 3, "value_head_dim": 4, "initial_state": "learned"},
    "mamba2": {"type": "mamba2", "num_heads": 2, "head_dim": 3, "state_dim": 4, "num_groups": 1, "initial_state": "learned"},
    "mlp": {"type": "swiglu", "intermediate_size": 3}},
    "pattern": [{"mixer": "gdn", "ffn": "mlp"}, {"mixer": "mamba2", "ffn": "mlp"}]})"));
  const ParameterCounts n = count_parameters(model);
  CHECK(n.state == 0);
  CHECK(n.memory == 0);
  CHECK(n.non_embedding == n.total - 2 * 5 * 6);
}

TEST_CASE("what decoding keeps includes the last channels in front of token shifts", "[fast]") {
  const auto bytes = [](const std::string& type, const std::string& keys) {
    const Model model(model_of(R"({"vocab_size": 5, "hidden_size": 6, "num_layers": 1, "layers": {"x": {"type": ")" +
                               type + R"(", "num_heads": 4, "num_kv_heads": 2, "head_dim": 3, "value_head_dim": 5)" +
                               keys +
                               R"(}, "mlp": {"type": "swiglu", "intermediate_size": 3}},
                               "pattern": [{"mixer": "x", "ffn": "mlp"}]})"));
    return model.state_bytes(9);
  };
  for (const auto& [type, keys] : {std::pair{"attention", ""}, std::pair{"attention", R"(, "window": 3)"},
                                   std::pair{"kvm", R"(, "chunk_size": 2, "state": {"mode": "fixed", "rows": 2})"}}) {
    INFO(type << keys);
    const int64_t channels = 4 * 3 + 2 * 3 + 2 * 5;
    CHECK(bytes(type, keys + std::string(R"(, "token_shift": true)")) == bytes(type, keys) + 2 * channels);
  }
}

FOLDER_TEST("a plan of a run names its batch, speed and the largest micro-batch that fits", "[fast]") {
  RunConfig config = test_run(folder);
  config.model = memory_model();
  const Plan plan = plan_run(config, {.memory_gib = 1, .tokens_per_s = 7});
  CHECK(plan.tokens == 7 * 4 * 9);
  CHECK(plan.largest_micro_batch == 4);
  CHECK(*plan.hours == Approx(36.0 / 3600));
  CHECK_THAT(plan.text(), Contains("largest micro-batch that fits: 4 rows") &&
                              Contains("time at the given speed: 00:00:36") &&
                              Contains("train.recompute=block  4 rows, ") && Contains("device cpu, precision fp64;") &&
                              Contains("disk: 3 checkpoints of about "));
  CHECK(plan.json().at("flops").at("total").as_double() == plan.training_flops());
  REQUIRE(plan.fits.size() == 4);
  const int64_t values = plan.parameters.total * int64_t{sizeof(double)};
  CHECK(plan.checkpoint_bytes >= 3 * values);  // and two moments
  CHECK(plan.json().at("checkpoint_bytes").as_int() == plan.checkpoint_bytes);
  CHECK_THAT(compare_plans({plan, plan}),
             Contains("device  precision  device memory") && Contains("     cpu       fp64  "));
  CHECK(plan.json().at("device").as_string() == "cpu");
  CHECK(plan.json().at("precision").as_string() == "fp64");
  CHECK(plan.fits.front().bytes > plan.fits.back().bytes);  // none, block
  CHECK(plan.json().at("fits").items().size() == 4);
  CHECK_THAT(plan_run(config, {.memory_gib = 1e-9}).text(), Contains("not even one row"));
}

TEST_CASE("a table of plans leaves out the columns that no plan fills", "[fast]") {
  const ModelConfig config = memory_model();
  Plan small = plan_model(config, 16);
  small.name = "a name that is longer than the title";
  const std::string table = compare_plans({small, small});
  CHECK_THAT(table, Contains("non-emb") && !Contains("train FLOPs") && !Contains("time"));
  const size_t line = table.find('\n') + 1;
  CHECK(table.size() == 3 * line);  // all lines have one width
}

TEST_CASE("an accounting of a paper covers only models of its layers", "[fast]") {
  const ModelConfig config = memory_model();
  CHECK(paper_flops(Model(config), 64).empty());  // SDM beside PKM is in no paper
}

FOLDER_TEST("a run on a GPU is planned without one, in bf16 by default: masters, copies of matrices, small activations",
            "[fast]") {
  const auto plan = [&](const std::optional<std::string>& precision) {
    RunConfig config = test_run(folder);
    config.model = memory_model();
    config.train.device = "cuda";
    config.train.precision = precision;
    resolve(config, 1, false);
    return plan_memory(config);
  };
  const MemoryPlan narrow = plan({}), wide = plan("fp32");
  const ModelConfig config = memory_model();
  const Model model(config);
  int64_t matrices = 0, trained = 0;
  for (const auto& p : model.params().all()) {
    matrices += p->is_matrix() ? p->spec.shape.numel() : 0;
    trained += p->trained() ? p->spec.shape.numel() : 0;
  }
  CHECK(narrow.parameter_bytes == wide.parameter_bytes + 2 * matrices);
  CHECK(narrow.gradient_bytes == 4 * trained);
  CHECK(narrow.gradient_bytes == wide.gradient_bytes);
  CHECK(narrow.work_bytes < wide.work_bytes);
}

FOLDER_TEST("a plan names the operations that fall back from tensor cores, each once, with the reason", "[fast]") {
  const auto plan = [&](const std::string& precision, const std::string& device, int64_t shared_kb) {
    RunConfig config = test_run(folder);
    config.model = model_of(R"({"vocab_size": 29, "hidden_size": 32, "num_layers": 4,
      "layers": {"wide": {"type": "attention", "num_heads": 1, "head_dim": 144},
                 "full": {"type": "attention", "num_heads": 1, "head_dim": 128},
                 "gdn": {"type": "gdn", "num_heads": 1, "key_head_dim": 64, "value_head_dim": 64},
                 "pkm": {"type": "pkm", "num_subkeys": 16, "key_dim": 8, "value_dim": 3, "num_heads": 1, "top_k": 1}},
      "pattern": [{"mixer": "wide", "ffn": "pkm"}, {"mixer": "wide", "ffn": "pkm"}, {"mixer": "full", "ffn": "pkm"},
                  {"mixer": "gdn", "ffn": "pkm"}]})");
    config.train.device = device;
    config.train.precision = precision;
    resolve(config, 1, false);
    const PlannedSharedMemory gpu(shared_kb * 1024);
    return plan_run(config, {.open_data = false});
  };
  const std::string wide = "attention: heads of 144 and 144 channels (tensor cores take multiples of 16 up to 128)";
  const std::string keys = "product keys: halves of 4 channels (tensor cores take multiples of 8)";
  const Plan large = plan("bf16", "cuda", 227), small = plan("bf16", "cuda", 99);
  CHECK(large.plain_cores == std::vector<std::string>{wide, keys});
  CHECK_THAT(large.text(), Contains("runs on plain cores: " + wide + "\n"));
  CHECK(large.json().at("plain_cores").items().size() == 2);
  CHECK(small.plain_cores ==
        std::vector<std::string>{
            wide, keys, "attention: heads of 128 channels: a block needs 113 KB of shared memory, the GPU has 99 KB",
            "delta rule: keys of 64 channels: a block needs 155 KB of shared memory, the GPU has 99 KB"});
  CHECK(plan("fp32", "cuda", 99).plain_cores.empty());  // has no tensor cores to leave
  CHECK(plan("fp32", "cpu", 99).plain_cores.empty());
}

TEST_CASE("plans group digits by three, and are compared by states after 4,096 and 65,536 tokens", "[fast]") {
  Plan plan;
  plan.name = "small";
  plan.parameters.total = 1234567;
  plan.parameters.non_embedding = 234567;
  plan.parameters.active = 4567;
  plan.contexts = {1024, 4096, 16384, 65536};
  plan.state_bytes = {1 << 10, 3 << 10, 5 << 10, 7 << 10};
  CHECK_THAT(plan.text(), Contains("total 1,234,567 (1.23M)") && Contains("non-embedding 234,567\n") &&
                              Contains("active per token 4,567\n"));
  const std::string compared = compare_plans({plan, plan});
  CHECK_THAT(compared, Contains("state @4K") && Contains("3.0 KiB") && Contains("state @64K") && Contains("7.0 KiB"));
  CHECK_THAT(compared, !Contains("1.0 KiB") && !Contains("5.0 KiB"));
}
