// Ranks as threads, each with a device of its own: the SIMT emulator alone has these. In bf16 ranks with `zero` 1 share
// the fp32 values of matrices and have whole copies.
#include <cmath>
#include <cstring>

#include "inspect/rank_plan.h"
#include "tests/device/device_run.h"
#include "tests/paths.h"
#include "tests/train/rank_runs.h"
#include "tests/train/step_account.h"
#include "train/model_source.h"

namespace {

bool has_devices() {
  if (!has_device()) { return false; }
  if (cuda::device_info().name == "SIMT emulator") { return true; }
  skip_case("the SIMT emulator alone has several devices");
  return false;
}

/// Steps of four micro-batches; those between the first and the last are not logged. Three buckets.
RunConfig small_run(int lanes, const std::string& precision) {
  return device_run(R"({"model": {"layers": {"mlp": {"intermediate_size": 4000}}},
    "train": {"steps": 6, "micro_batch_size": 1, "threads": 1, "log_every": 1000, "checkpoint": {"every": 1000},
              "precision": ")" +
                    precision + R"(", "lanes": )" + std::to_string(lanes) + R"(},
    "optimizer": {"clip_norm": 0.3}})");
}

using ModelRun = RunConfig (*)(const TempFolder&, const std::string&);

MakeRun in_bf16(ModelRun make, const TempFolder& folder, int lanes, const std::string& train = "{}") {
  Json json = parse_json(R"({"precision": "bf16", "steps": 4, "val_every": 2})", "train.json");
  merge_json(json, parse_json(train, "train.json"));
  return [make, lanes, &folder, text = json.dump()] { return make(folder, changes(folder, lanes, text)); };
}

RunConfig local_memory_run(const TempFolder& folder, const std::string& changes) { return memory_run(folder, changes); }

RunConfig global_memory_run(const TempFolder& folder, const std::string& changes) {
  return memory_run(folder, changes, "global");
}

RunConfig tied_run(const TempFolder& folder, const std::string& changes) {
  RunConfig config = wide_run(folder, changes);
  config.model.tie_embeddings = true;
  return config;
}

std::string all_bytes(const fs::path& folder, int64_t step) {
  const std::vector<std::string> bytes = bytes_of(folder, step);
  return bytes[0] + bytes[1] + bytes[2];
}

}  // namespace

FOLDER_TEST("ranks have the bits of one rank, with overlap and graphs and without") {
  if (!has_devices()) { return; }
  const std::string precision = GENERATE("fp32", "bf16");
  CAPTURE(precision);
  int run = 0;
  const auto run_one = [&](int lanes, Split split) {
    split.device = "cuda";
    split.bucket_mib = 1;
    const fs::path path = folder / std::to_string(run++);
    Heard heard;
    const auto count_graphs = [&] { CHECK((cuda::device_counts().graphs > 0) == split.graphs); };
    REQUIRE(run_split(
                path, [&] { return small_run(lanes, precision); }, split, heard, {}, count_graphs) == 0);
    return all_bytes(path, 6);
  };
  const auto check = [&](int lanes, const std::vector<Split>& splits) {
    CAPTURE(lanes);
    const std::string one = run_one(lanes, {.ranks = 1, .zero = 0});
    for (const Split& split : splits) {
      CAPTURE(split.ranks, split.zero, split.overlap, split.graphs);
      CHECK((run_one(lanes, split) == one));
    }
  };
  check(2, {{.ranks = 2},
            {.ranks = 2, .overlap = true},
            {.ranks = 2, .overlap = true, .graphs = true},
            {.ranks = 2, .zero = 0, .overlap = true, .graphs = true}});
  check(4, {{.ranks = 2, .overlap = true}});  // gradients leave at the end: values are not pushed on by them
}

FOLDER_TEST("runs in bf16 have the same bytes on 1, 2 and 4 ranks") {
  if (!has_devices()) { return; }
  const MakeRun make = in_bf16(tied_run, folder, 4, R"({"batch_size": 4})");
  REQUIRE(run_split(folder / "one", make, {.ranks = 1, .zero = 0, .device = "cuda"}) == 0);
  int run = 0;
  for (Split split :
       {Split{.ranks = 2}, Split{.ranks = 2, .zero = 0}, Split{.ranks = 4, .bucket_mib = 1, .overlap = true},
        Split{.ranks = 4, .zero = 0, .bucket_mib = 1, .overlap = true}, Split{.ranks = 1}}) {
    CAPTURE(split.ranks, split.zero, split.overlap);
    split.device = "cuda";
    const fs::path other = folder / ("other" + std::to_string(run++));
    REQUIRE(run_split(other, make, split) == 0);
    for (const int64_t step : {1, 4}) { check_same(folder / "one", other, step); }
  }
  // Weights that are given to a new run.
  const RunOptions options{.init_from = checkpoint_in(folder / "one", 4)};
  Heard heard;
  REQUIRE(run_split(folder / "from one", make, {.ranks = 1, .device = "cuda"}, heard, options) == 0);
  REQUIRE(run_split(folder / "from four", make, {.ranks = 4, .device = "cuda"}, heard, options) == 0);
  check_same(folder / "from one", folder / "from four", 4);
  CHECK((bytes_of(folder / "from one", 4)[0] != bytes_of(folder / "one", 4)[0]));
}

FOLDER_TEST("a run in bf16 goes on with other numbers of ranks as if nothing had happened") {
  if (!has_devices()) { return; }
  const auto model = GENERATE(as<ModelRun>(), &wide_run, &local_memory_run);
  const MakeRun make = in_bf16(model, folder, 4, R"({"batch_size": 4, "steps": 7})");
  REQUIRE(run_split(folder / "whole", make, {.ranks = 1, .device = "cuda"}) == 0);
  for (Split split : {Split{.ranks = 4, .bucket_mib = 1}, Split{.ranks = 2}, Split{.ranks = 1},
                      Split{.ranks = 4, .overlap = true}, Split{.ranks = 4, .zero = 0}}) {
    split.device = "cuda";
    REQUIRE(run_split(folder / "parts", one_step(make), split) == 75);
  }
  REQUIRE(run_split(folder / "parts", make, {.ranks = 4, .overlap = true, .device = "cuda"}) == 0);
  for (int64_t step = 1; step <= 7; ++step) {
    CHECK((all_bytes(folder / "parts", step) == all_bytes(folder / "whole", step)));
  }
  CHECK(metrics_of(folder / "parts") == metrics_of(folder / "whole"));
}

FOLDER_TEST("every layer has the same bytes in bf16 on one rank and on several", "[slow]") {
  if (!has_devices()) { return; }
  const auto model = GENERATE(as<ModelRun>(), &mixed_run, &codebook_run, &local_memory_run, &global_memory_run);
  const bool is_global = model == global_memory_run;
  const std::string train = GENERATE(R"({"batch_size": 4})", R"({"batch_size": 4, "document_mask": false})");
  const MakeRun make = in_bf16(model, folder, is_global ? 2 : 4, train);
  const bool graphs = train.find("document_mask") != std::string::npos;
  REQUIRE(run_split(folder / "one", make, {.ranks = is_global ? 2 : 1, .zero = 0, .device = "cuda"}) == 0);
  for (Split split : {Split{.ranks = 2}, Split{.ranks = 4, .bucket_mib = 1, .overlap = true}}) {
    CAPTURE(split.ranks, graphs);
    if (is_global && split.ranks > 2) { continue; }
    split.device = "cuda";
    split.graphs = graphs;
    const fs::path other = folder / ("ranks" + std::to_string(split.ranks));
    REQUIRE(run_split(other, make, split) == 0);
    check_same(folder / "one", other, 4);
    for (int lane = 0; model == local_memory_run && lane < 4; ++lane) {
      const auto memory = [&](const fs::path& run) {
        return read_file(checkpoint_in(run, 4) / ("fast.lane" + std::to_string(lane) + ".safetensors"));
      };
      CHECK((memory(other) == memory(folder / "one")));
    }
  }
}

FOLDER_TEST("steps in bf16 that are not finite are skipped by all ranks") {
  if (!has_devices()) { return; }
  const MakeRun make =
      in_bf16(wide_run, folder, 2, R"({"batch_size": 2, "steps": 6, "val_every": 0, "checkpoint": {"every": 6}})");
  for (const Split& split :
       {Split{.ranks = 1, .zero = 0, .device = "cuda"}, Split{.ranks = 2, .overlap = true, .device = "cuda"}}) {
    Trainer* first = nullptr;
    Heard heard;
    heard.on_line = break_weight(first, 2);
    const fs::path run = folder / std::to_string(split.ranks);
    REQUIRE(run_split(run, make, split, heard, {}, {}, keep_first(first)) == 0);
    CHECK(metric(run, "skipped").back() == 1);
  }
  check_same(folder / "1", folder / "2", 6);
}

FOLDER_TEST("a copy that changes on one rank ends the run at the next save") {
  if (!has_devices()) { return; }
  const MakeRun make = in_bf16(wide_run, folder, 2, R"({"batch_size": 2, "val_every": 0})");
  const int zero = GENERATE(0, 1);
  Trainer* first = nullptr;
  Heard heard;
  heard.on_line = [&](const std::string& line) {
    if (!line.starts_with("step 2/4")) { return; }
    Stream stream{DeviceKind::cuda};
    const Param& embedding = *first->params().find("embed.weight");
    CHECK(embedding.value.defined() == (zero == 0));
    std::vector<uint16_t> bits(static_cast<size_t>(embedding.copy.numel()));
    copy_to_host(stream, bits.data(), embedding.copy);
    bits[0] ^= 1;
    copy_to_device(stream, embedding.copy, bits.data());
  };
  const Split split{.ranks = 2, .zero = zero, .overlap = true, .device = "cuda", .graphs = true};
  CHECK_THROWS_WITH(run_split(folder / "run", make, split, heard, {}, {}, keep_first(first)),
                    Contains("embed.weight") && Contains("the rounded values of rank 1 differ"));
  CHECK(CheckpointFolder(folder / "run" / "checkpoints").steps() == std::vector<int64_t>{1});
}

FOLDER_TEST("a plan of ranks in bf16 is what the ranks reserve and send, to the byte") {
  if (!has_devices()) { return; }
  const int zero = GENERATE(-1, 0);  // -1: not given
  const bool overlap = GENERATE(false, true);
  CAPTURE(zero, overlap);
  const auto make = [&] {
    RunConfig config = wide_run(folder, "{}");
    config.train.batch_size = 4;
    config.train.micro_batch_size = 1;
    config.train.device = "cuda";
    config.train.precision = "bf16";
    config.train.cuda_graphs = false;
    resolve(config, 1, false);
    if (zero == 0) { config.source = parse_json(R"({"train": {"zero": 0}})", "run.json"); }
    config.train.comm = CommConfig{};
    config.train.comm->bucket_mib = 1;
    config.train.comm->overlap = overlap;
    return config;
  };
  const RankPlan plan = plan_ranks(make(), {.ranks = 4, .link = read_link("nvlink")});
  REQUIRE(plan.rows.size() == 3);
  REQUIRE(plan.buckets > 1);
  for (const RankPlanRow& row : plan.rows) {
    CAPTURE(row.ranks);
    const StepAccount account = account_of_step(make(), row.ranks, row.zero, DeviceKind::cuda);
    CHECK(account.state_bytes == row.memory.state_bytes());
    // The plan is the extent of work memory, in which a pass in bf16 leaves holes.
    CHECK(account.work_bytes <= row.memory.work_bytes);
    CHECK(static_cast<double>(account.work_bytes) > 0.98 * static_cast<double>(row.memory.work_bytes));
    CHECK(account.exchanged_bytes == row.reduce_bytes);
    CHECK(account.gathered_bytes == row.gather_bytes);
  }
  if (zero == 0) { return; }
  // 2 bytes of nearly each value travel; its copy is whole, its fp32 value divided.
  double parameters = 0;
  for (const int64_t n : sizes_of_trained(Model(make().model))) { parameters += static_cast<double>(n); }
  const RankPlanRow& four = plan.rows[2];
  CHECK(static_cast<double>(four.gather_bytes) == Approx(2 * parameters * 3 / 4).epsilon(0.05));
  CHECK(static_cast<double>(four.memory.parameter_bytes) == Approx((2 + 4.0 / 4) * parameters).epsilon(0.1));
}

/// One pass forward and back; what it leaves in loss and gradients.
std::vector<float> pass_of(const fs::path& golden, bool has_masters) {
  const ModelConfig config = read_model_config(golden / "model.json");
  Stream stream{DeviceKind::cuda};
  Arena state(DeviceKind::cuda), work(DeviceKind::cuda);
  Model model(config);
  model.params().allocate(state, DType::bf16, true);
  model.params().initialize(stream, 1);
  for (const auto& p : model.params().all()) {
    if (!has_masters && p->copy.defined()) { p->value.data = nullptr; }
  }
  constexpr int64_t kRows = 2, kLength = 13;
  std::vector<int32_t> tokens;
  Rng rng(7, "tokens");
  for (int64_t i = 0; i < 2 * kRows * kLength; ++i) {
    tokens.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(config.vocab_size))));
  }
  const double scale = 1.0 / (kRows * kLength);
  const Buffer ids(state, {2, kRows * kLength}, DType::i32, "tokens"),
      row_loss(state, {kRows * kLength}, DType::f64, "losses"), scales(state, {1}, DType::f64, "scale");
  copy_to_device(stream, ids, tokens.data());
  copy_to_device(stream, scales, &scale);
  PassSettings settings;
  settings.training = true;
  model.begin_step(stream, 0);
  model.params().zero_grads(stream);
  run_pass(model, stream, work, Rows::streams(stream, work, kRows, kLength),
           {.inputs = ids.tensor().slice(0, {kRows * kLength}),
            .targets = ids.tensor().slice(kRows * kLength, {kRows * kLength}),
            .row_loss = row_loss,
            .scale = scales},
           settings);
  std::vector<float> found;
  for (const auto& p : model.params().all()) {
    if (!p->trained()) { continue; }
    std::vector<float> grad(static_cast<size_t>(p->grad.numel()));
    copy_to_host(stream, grad.data(), p->grad);
    found.insert(found.end(), grad.begin(), grad.end());
  }
  return found;
}

TEST_CASE("passes in bf16 read the copy alone of what has one", "[slow]") {
  if (!has_devices()) { return; }
  for (const fs::directory_entry& entry : fs::directory_iterator(fs::path(test_data_path()) / "golden")) {
    if (!fs::exists(entry.path() / "model.json")) { continue; }
    CAPTURE(entry.path().filename().string());
    const std::vector<float> expected = pass_of(entry.path(), true), found = pass_of(entry.path(), false);
    CHECK(std::all_of(expected.begin(), expected.end(), [](float x) { return std::isfinite(x); }));
    CHECK(std::memcmp(found.data(), expected.data(), expected.size() * sizeof(float)) == 0);
  }
}
