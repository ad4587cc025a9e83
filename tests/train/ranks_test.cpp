// Runs of several ranks, as threads: the same bytes as one rank with the same lanes (docs/design/data-parallel.md).
#include <fmt/format.h>
#include <signal.h>

#include <sstream>
#include <utility>

#include "comm/value_layout.h"
#include "core/host.h"
#include "layers/ops/linear.h"
#include "tests/train/rank_runs.h"
#include "tests/train/step_account.h"

namespace {

/// y = x weightᵀ; on rank 1 alone `extra` follows, and step index 2 is not finite. `idle` is of no use.
class UnevenMixer final : public Layer {
 public:
  explicit UnevenMixer(const BuildContext& c) {
    const int64_t d = c.model.hidden_size;
    weight_ = &c.declare("weight", {d, d}, init::normal(0.2));
    extra_ = &c.declare("extra", {d, d}, init::normal(0.2));
    idle_ = &c.declare("idle", {d, d}, init::normal(0.2));
  }
  Var forward(Pass& pass, Var x, LayerState*) override {
    const Var extra = pass.param(*extra_);
    pass.param(*idle_);
    const Var y = linear(pass.tape, x, pass.param(*weight_));
    if (!pass.training || pass.stream().counting() || pass.ranks == nullptr || pass.ranks->rank() != 1) { return y; }
    if (pass.step == 2) { pass.tape.value(y).as<double>()[0] = std::numeric_limits<double>::quiet_NaN(); }
    return linear(pass.tape, y, extra);
  }
  std::unique_ptr<LayerState> make_state(Arena&, int64_t, DType) const override { return nullptr; }
  double flops_per_token(int64_t) const override { return 0; }

 private:
  Param *weight_, *extra_, *idle_;
};

struct UnevenMixerConfig final : LayerConfig {
  void fields(Fields&) override {}
  std::unique_ptr<Layer> make(const BuildContext& c) const override { return std::make_unique<UnevenMixer>(c); }
};

/// Runs `one` in folder/one, and each of `others` in folder/RANKS-ZERO-MIB: with the same bytes after these steps.
void check_splits(const TempFolder& folder, const MakeRun& make, const Split& one, const std::vector<Split>& others,
                  const std::vector<int64_t>& steps = {7}) {
  REQUIRE(run_split(folder / "one", make, one) == 0);
  for (const Split& split : others) {
    CAPTURE(split.ranks, split.zero, split.bucket_mib);
    const fs::path other = folder / fmt::format("{}-{}-{}", split.ranks, split.zero, split.bucket_mib);
    REQUIRE(run_split(other, make, split) == 0);
    for (const int64_t step : steps) { check_same(folder / "one", other, step); }
  }
}

}  // namespace

FOLDER_TEST("the same bytes for every allowed number of ranks, with shared moments and without", "[fast]") {
  const std::string precision =
      GENERATE(R"({"precision": "fp32"})", R"({"precision": "fp64"})", R"({"precision": "bf16"})");
  const MakeRun make = [&] { return wide_run(folder, changes(folder, 4, precision)); };
  check_splits(folder, make, {1, 0}, {{2, 1, 64}, {4, 1, 1}, {2, 0, 1}, {4, 0, 64}});
}

FOLDER_TEST("gradients that leave during a pass, and values that arrive during the next one, give the same bytes",
            "[fast]") {
  const bool ties = GENERATE(false, true);
  const std::string train = ties ? R"({"precision": "fp64", "recompute": "block"})" : R"({"precision": "fp32"})";
  const MakeRun make = [&] {
    RunConfig config = wide_run(folder, far_apart(folder, 4, train));
    config.model.tie_embeddings = ties;
    if (!ties) { config.model.vocab_size = 6000; }  // a bucket of the head alone
    return config;
  };
  check_splits(folder, make, {1, 0},
               {{4, 1, 1, "fp32", true}, {2, 1, 1, "fp32", true}, {4, 0, 1, "fp32", true}, {4, 1, 64, "fp32", true}},
               {6, 12});
}

FOLDER_TEST("every layer's gradients are complete when they leave, and its values when it reads them", "[fast]") {
  const int kind = GENERATE(0, 1, 2);
  const std::string precision = GENERATE(R"({"precision": "fp32"})", R"({"precision": "bf16"})");
  CAPTURE(kind, precision);
  const MakeRun make = [&] {
    const std::string train = far_apart(folder, 2, precision);
    return kind == 0   ? mixed_run(folder, train)
           : kind == 1 ? memory_run(folder, train, "global")
                       : codebook_run(folder, train);
  };
  check_splits(folder, make, {kind == 1 ? 2 : 1, 0}, {{2, 1, 1, "fp32", true}}, {12});
}

FOLDER_TEST("values arrive also where a step has no pass", "[fast]") {
  std::string tokens = read_file(write_tokens(folder));
  const size_t batch = 12 * 9 * 2;                                                           // bytes
  for (const size_t step : {2, 6, 7}) { tokens.replace(step * batch, batch, batch, '\0'); }  // documents of one token
  folder.write("tokens.bin", tokens);
  const MakeRun make = [&] {
    RunConfig config = wide_run(folder, far_apart(folder, 4));
    config.data.packing.shuffle = "none";
    config.data.validation[0].max_rows = 1;  // of the first rank
    return config;
  };
  check_splits(folder, make, {1}, {{2, 1, 1, "fp32", true}, {4, 1, 1, "fp32", true}}, {12});
  CHECK(metric(folder / "one", "skipped").back() == 3);
}

FOLDER_TEST("gradients that travel in bf16 have the same bytes for one number of ranks", "[fast]") {
  const MakeRun make = [&] { return wide_run(folder, changes(folder, 4, R"({"precision": "fp32"})")); };
  REQUIRE(run_split(folder / "fp32", make, {.ranks = 1}) == 0);
  REQUIRE(run_split(folder / "alone", make, {.ranks = 1, .reduce = "bf16"}) == 0);  // sends nothing
  check_same(folder / "fp32", folder / "alone", 7);
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    const fs::path one = folder / ("one" + std::to_string(ranks)), other = folder / ("other" + std::to_string(ranks));
    REQUIRE(run_split(one, make, {.ranks = ranks, .zero = 1, .reduce = "bf16"}) == 0);
    REQUIRE(run_split(other, make, {.ranks = ranks, .zero = 0, .bucket_mib = 1, .reduce = "bf16"}) == 0);
    check_same(one, other, 7);
    CHECK((bytes_of(one, 7)[0] != bytes_of(folder / "fp32", 7)[0]));
    const std::vector<double> exact = metric(folder / "fp32", "loss"), rounded = metric(one, "loss");
    for (size_t i = 0; i < exact.size(); ++i) { CHECK(rounded[i] == Approx(exact[i]).epsilon(1e-3)); }
  }
}

FOLDER_TEST("how gradients travel stays when a run goes on", "[fast]") {
  const MakeRun make = [&] {
    return wide_run(folder, changes(folder, 2, R"({"precision": "fp32", "max_minutes": 1e-9})"));
  };
  REQUIRE(run_split(folder / "run", make, {.ranks = 2}) == 75);
  CHECK_THROWS_WITH(run_split(folder / "run", make, {.ranks = 2, .reduce = "bf16"}),
                    Contains("train.comm.reduce was \"fp32\" and is \"bf16\""));
  REQUIRE(run_split(folder / "run", make, {.ranks = 2, .bucket_mib = 1}) == 75);
  RunConfig config = test_run(folder);
  config.train.comm = CommConfig{};
  config.train.comm->reduce = "bf16";
  CHECK_THROWS_WITH(resolve(config, 1),
                    Contains("train.comm.reduce: found \"bf16\", expected \"fp32\" with train.precision"));
}

FOLDER_TEST("every layer without fast weights has the same bytes on 1, 3 and 6 ranks", "[fast]") {
  const MakeRun make = [&] { return mixed_run(folder, changes(folder, 6)); };
  check_splits(folder, make, {1}, {{3}, {6}});
  const auto threshold = [&](int64_t step) { return weights_of(folder / "one", step, "blocks.7.mixer.threshold"); };
  CHECK(threshold(7) != threshold(1));  // counts of all ranks move it
}

FOLDER_TEST("each lane has fast weights of its own, whatever rank it is on", "[fast]") {
  const MakeRun make = [&] { return memory_run(folder, changes(folder, 4)); };
  check_splits(folder, make, {1}, {{2}, {4}});
  const auto memory = [&](const char* run, int lane) {
    return read_file(checkpoint_in(folder / run, 7) / fmt::format("fast.lane{}.safetensors", lane));
  };
  CHECK((memory("one", 0) != memory("one", 1)));
  for (int lane = 0; lane < 4; ++lane) {
    for (const char* run : {"2-1-64", "4-1-64"}) { CHECK((memory(run, lane) == memory("one", lane))); }
  }
  const SafetensorsFile model(checkpoint_in(folder / "one", 7) / "model.safetensors"),
      first(checkpoint_in(folder / "one", 7) / "fast.lane0.safetensors");
  CHECK(model.doubles("blocks.0.memory.values") == first.doubles("blocks.0.memory.values"));
  folder.write("one/checkpoints/step_00000007/fast.lane2.safetensors", "damaged");
  CHECK_THROWS_WITH(run_split(folder / "one", make, {.ranks = 1}), Contains("fast.lane2.safetensors: found 7"));
}

FOLDER_TEST("lanes of a run that goes on with other lanes take the memories in turn", "[fast]") {
  REQUIRE(run_split(folder / "run", [&] { return memory_run(folder, changes(folder, 2, R"({"steps": 3})")); },
                    {.ranks = 2}) == 0);
  Heard heard;
  REQUIRE(run_split(
              folder / "run", [&] { return memory_run(folder, changes(folder, 3)); }, {.ranks = 3}, heard) == 0);
  CHECK(heard.has("2 memories in the checkpoint, 3 lanes; lane l takes memory l mod 2"));
}

FOLDER_TEST("one memory for the rows of all ranks is that of one rank with these rows", "[fast]") {
  const int ranks = GENERATE(2, 4);
  const bool masked = GENERATE(false, true);
  CAPTURE(ranks, masked);
  const auto run = [&](const fs::path& to, int lanes) {
    const Json train = Json::object({{"micro_batch_size", Json(4 / lanes)}, {"document_mask", Json(masked)}});
    REQUIRE(run_split(to, [&] { return memory_run(folder, changes(folder, lanes, train.dump()), "global"); },
                      {.ranks = lanes}) == 0);
  };
  run(folder / "one", 1);
  run(folder / "ranks", ranks);
  const std::vector<std::string> expected = metrics_of(folder / "one"), found = metrics_of(folder / "ranks");
  REQUIRE((found.size() == expected.size() && found.size() == 7 + 3));
  for (size_t i = 0; i < found.size(); ++i) {
    const Json one = parse_json(expected[i], "one"), many = parse_json(found[i], "many");
    CHECK(many.at("loss").as_double() == Approx(one.at("loss").as_double()).epsilon(1e-11));
  }
  for (const char* name : {"blocks.0.memory.keys", "blocks.0.memory.values", "blocks.1.memory.w_up"}) {
    CAPTURE(name);
    const std::vector<double> one = weights_of(folder / "one", 7, name), many = weights_of(folder / "ranks", 7, name);
    CHECK(one != weights_of(folder / "one", 1, name));
    for (size_t i = 0; i < one.size(); ++i) { REQUIRE(many[i] == Approx(one[i]).epsilon(1e-10)); }
  }
  CHECK_FALSE(fs::exists(checkpoint_in(folder / "ranks", 7) / "fast.lane0.safetensors"));
}

FOLDER_TEST("a run with one memory for all rows has the same bytes however it is run", "[fast]") {
  const auto make = [&](const std::string& train) {
    return [&, train] { return memory_run(folder, changes(folder, 2, train), "global"); };
  };
  REQUIRE(run_split(folder / "whole", make("{}"), {.ranks = 2, .zero = 0}) == 0);
  REQUIRE(run_split(folder / "shared", make("{}"), {.ranks = 2, .zero = 1, .bucket_mib = 1}) == 0);
  check_same(folder / "whole", folder / "shared", 7);
  REQUIRE(run_split(folder / "again", make(R"({"recompute": "block"})"), {.ranks = 2}) == 0);
  check_same(folder / "whole", folder / "again", 7);
  for (int start = 0; start < 3; ++start) {
    REQUIRE(run_split(folder / "parts", make(R"({"max_minutes": 1e-9})"), {.ranks = 2, .zero = start % 2}) == 75);
  }
  REQUIRE(run_split(folder / "parts", make("{}"), {.ranks = 2}) == 0);
  check_same(folder / "whole", folder / "parts", 7);
}

FOLDER_TEST("a memory of each lane beside one for all rows", "[fast]") {
  const MakeRun make = [&] { return memory_run(folder, changes(folder, 2), "global", "local"); };
  REQUIRE(run_split(folder / "run", make, {.ranks = 2}) == 0);
  const auto lane = [&](int l) {
    return SafetensorsFile(checkpoint_in(folder / "run", 7) / ("fast.lane" + std::to_string(l) + ".safetensors"));
  };
  CHECK(lane(0).doubles("blocks.1.memory.w_up") != lane(1).doubles("blocks.1.memory.w_up"));
  CHECK_THROWS(lane(0).doubles("blocks.0.memory.keys"));
}

FOLDER_TEST("a codebook starts from the keys of the first rank", "[fast]") {
  check_splits(folder, [&] { return codebook_run(folder, changes(folder, 4)); }, {1}, {{2, 1}, {4, 0}, {4, 1}},
               {3, 4, 7});
  CHECK(updates_of(folder / "one", 3, "blocks.0.mixer.k_proj.weight") == 3);
  CHECK(updates_of(folder / "one", 7, "blocks.0.mixer.codebook") == 4);
}

FOLDER_TEST("ranks that change keep the rows that share an update", "[fast]") {
  const auto resolved = [&](int ranks, std::optional<int64_t> fast_batch = {}) {
    RunConfig config = memory_run(folder, changes(folder, 1), "global");
    config.train.lanes = std::nullopt;
    config.train.micro_batch_size = std::nullopt;
    config.train.fast_batch = fast_batch;
    resolve(config, ranks, true, StoredSplit{.lanes = 4, .micro_batch_size = 1});
    return config.train;
  };
  CHECK((resolved(2).lanes == 2 && resolved(2).micro_batch_size == 2));
  CHECK((!resolved(1).lanes && resolved(1).micro_batch_size == 4));
  CHECK((resolved(3).lanes == 3 && resolved(3).micro_batch_size == 4));  // 4 rows are no multiple of 3
  CHECK(resolved(2, 4).fast_batch == 4);
  CHECK_THROWS_WITH(resolved(2, 2),
                    Contains("train.fast_batch: found 2, expected 4, the rows of a micro-batch of all ranks"));
}

FOLDER_TEST("a run goes on with other numbers of ranks as if nothing had happened", "[fast]") {
  const bool has_memories = GENERATE(false, true);
  const std::string precision = GENERATE(R"({"precision": "fp64"})", R"({"precision": "bf16"})");
  const MakeRun make = [&] {
    const std::string train = changes(folder, 4, precision);
    return has_memories ? memory_run(folder, train) : wide_run(folder, train);
  };
  REQUIRE(run_split(folder / "whole", make, {.ranks = 1}) == 0);
  const Split starts[] = {{4, 1, 1}, {2, 1, 64}, {1, 0, 64}, {4, 0, 1}, {2, 0, 64}, {1, 1, 1}};
  for (const Split& split : starts) { REQUIRE(run_split(folder / "parts", one_step(make), split) == 75); }
  REQUIRE(run_split(folder / "parts", make, {.ranks = 4}) == 0);
  check_same(folder / "whole", folder / "parts", 7);
}

FOLDER_TEST("lanes give what one lane gives, up to rounding", "[fast]") {
  REQUIRE(run_split(folder / "one", [&] { return mixed_run(folder, changes(folder, 1)); }, {.ranks = 1}) == 0);
  REQUIRE(run_split(folder / "four", [&] { return mixed_run(folder, changes(folder, 4)); }, {.ranks = 2}) == 0);
  const std::vector<double> one = metric(folder / "one", "loss"), four = metric(folder / "four", "loss");
  REQUIRE(one.size() == 7);
  for (size_t i = 0; i < one.size(); ++i) { CHECK(four[i] == Approx(one[i]).epsilon(1e-9)); }
}

FOLDER_TEST("what cannot be trained in lanes is refused", "[fast]") {
  const MakeRun fast = [&] { return memory_run(folder, changes(folder, 2), "global"); };
  CHECK_THROWS_WITH(run_split(folder / "run", fast, {.ranks = 1}),
                    Contains("train.lanes: found 2, expected 1: blocks.0.memory (fwpkm, sync \"global\")"));
  RunConfig config = test_run(folder);
  config.train.lanes = 6;
  config.train.batch_size = 6;
  CHECK_THROWS_WITH(resolve(config, 2), Contains("found 2 ranks, expected 1, 3, 6 with 6 lanes"));
  config.train.lanes = std::nullopt;
  config.train.micro_batch_size = std::nullopt;
  resolve(config, 3);
  CHECK((config.train.lanes == 3 && config.train.micro_batch_size == 2 && config.train.zero == 0));  // zero: of before
}

FOLDER_TEST("a run that goes on keeps its lanes where the number of ranks allows it", "[fast]") {
  const auto resolved = [&](int ranks, StoredSplit stored) {
    RunConfig config = test_run(folder, R"({"train": {"batch_size": 12, "micro_batch_size": 1}})", false);
    config.train.micro_batch_size = std::nullopt;
    config.train.zero = std::nullopt;
    resolve(config, ranks, true, stored);
    return config;
  };
  const RunConfig same = resolved(2, {.lanes = 4, .micro_batch_size = 3});
  CHECK((same.train.lanes == 4 && same.train.micro_batch_size == 3 && same.train.zero == 1));
  const RunConfig other = resolved(3, {.lanes = 4, .micro_batch_size = 3});
  CHECK((other.train.lanes == 3 && other.train.micro_batch_size == 4));
  const RunConfig one = resolved(1, {.lanes = 1, .micro_batch_size = 5});
  CHECK((!one.train.lanes && one.train.micro_batch_size == 12 && one.train.zero == 0));
}

FOLDER_TEST("a change of lanes is said", "[fast]") {
  const auto make = [&](int lanes) { return [&, lanes] { return wide_run(folder, changes(folder, lanes)); }; };
  REQUIRE(run_split(folder / "run", one_step(make(4)), {.ranks = 4}) == 75);
  Heard heard;
  REQUIRE(run_split(folder / "run", make(3), {.ranks = 3}, heard) == 0);
  CHECK(heard.has("train.lanes was 4 and is 3"));
}

FOLDER_TEST("steps that are not finite are skipped by all ranks", "[fast]") {
  TestMixerConfig::poisoned = {2, 3};
  check_splits(folder, [&] { return test_run(folder, changes(folder, 4), false); }, {1}, {{4}});
  TestMixerConfig::poisoned.clear();
  CHECK(metric(folder / "one", "skipped").back() == 2);
}

FOLDER_TEST("what one rank alone meets counts for all", "[fast]") {
  const auto make = [&](const std::string& changes) {
    return [this, changes] {
      RunConfig config = test_run(folder, changes, false);
      config.model.layers[0].config = std::make_unique<UnevenMixerConfig>();
      return config;
    };
  };
  REQUIRE(run_split(folder / "run", make(changes(folder, 2)), {.ranks = 2, .zero = 0}) == 0);
  const std::vector<double> losses = metric(folder / "run", "loss");
  for (size_t i = 0; i < losses.size(); ++i) { CHECK(std::isfinite(losses[i]) == (i != 2)); }
  CHECK(metric(folder / "run", "skipped").back() == 1);
  const auto values = [&](int64_t step, const char* name) { return weights_of(folder / "run", step, name); };
  CHECK(values(7, "blocks.1.mixer.extra") != values(1, "blocks.1.mixer.extra"));
  CHECK(values(7, "blocks.1.mixer.idle") == values(1, "blocks.1.mixer.idle"));
  CHECK(values(3, "blocks.1.mixer.weight") == values(2, "blocks.1.mixer.weight"));
  CHECK(updates_of(folder / "run", 7, "blocks.1.mixer.weight") == 6);
  CHECK(updates_of(folder / "run", 7, "blocks.1.mixer.extra") == 6);
  CHECK(updates_of(folder / "run", 7, "blocks.1.mixer.idle") == 0);
  REQUIRE(run_split(folder / "shared", make(changes(folder, 2)), {.ranks = 2}) == 0);
  check_same(folder / "run", folder / "shared", 7);
  const MakeRun apart = make(far_apart(folder, 2));
  REQUIRE(run_split(folder / "apart", apart, {.ranks = 2, .zero = 0}) == 0);
  REQUIRE(run_split(folder / "overlap", apart, {.ranks = 2, .overlap = true}) == 0);
  check_same(folder / "apart", folder / "overlap", 12);
}

FOLDER_TEST("a signal to one process stops all ranks after the same step", "[fast]") {
  const MakeRun make = [&] { return wide_run(folder, changes(folder, 4)); };
  REQUIRE(run_split(folder / "whole", make, {.ranks = 1}) == 0);
  for (const char* at : {"step 2/7", "val v", "saved"}) {
    const fs::path run = folder / (std::string("run") + at[0] + at[1]);
    Heard heard;
    bool is_sent = false;  // a second one would end the process
    heard.on_line = [&](const std::string& line) {
      if (line.find(at) != std::string::npos && !std::exchange(is_sent, true)) { raise(SIGTERM); }
    };
    REQUIRE(run_split(run, make, {.ranks = 4}, heard) == 75);
    CHECK(heard.has("by SIGTERM"));
    REQUIRE(run_split(run, make, {.ranks = 2}) == 0);
    check_same(folder / "whole", run, 7);
  }
}

FOLDER_TEST("a signal before the first step ends all ranks, and nothing is saved", "[fast]") {
  const MakeRun make = [&] { return wide_run(folder, changes(folder, 4)); };
  const StopSignals early;
  Heard heard;
  heard.on_line = [](const std::string& line) {
    if (line.starts_with("run ")) { raise(SIGUSR1); }
  };
  REQUIRE(run_split(folder / "run", make, {.ranks = 4}, heard) == 75);
  CHECK(heard.has("stopped before the first step by SIGUSR1"));
  CHECK_FALSE(fs::exists(folder / "run" / "checkpoints"));
  CHECK(fs::file_size(folder / "run" / "metrics.jsonl") == 0);
}

FOLDER_TEST("metrics of several ranks say what communication costs", "[fast]") {
  const MakeRun make = [&] { return wide_run(folder, changes(folder, 4)); };
  REQUIRE(run_split(folder / "one", make, {.ranks = 1}) == 0);
  REQUIRE(run_split(folder / "two", make, {.ranks = 2}) == 0);
  CHECK(read_file(folder / "one" / "metrics.jsonl").find("\"comm\"") == std::string::npos);
  std::istringstream lines(read_file(folder / "two" / "metrics.jsonl"));
  int steps = 0;
  for (std::string text; std::getline(lines, text);) {
    const Json line = parse_json(text, "metrics.jsonl");
    if (line.find("val") != nullptr) { continue; }
    ++steps;
    const Json& comm = line.at("comm");
    CHECK(comm.at("ranks").as_int() == 2);
    CHECK(comm.at("exposed_ms").as_double() > 0);
    const double least = comm.at("wait_ms").items()[0].as_double(), most = comm.at("wait_ms").items()[2].as_double();
    CHECK((0 <= least && least <= most && most < line.at("step_ms").as_double()));
    CHECK(comm.at("skew").as_double() >= 1);
    // Half of the gradients and the own values, in fp64, and the records of the step.
    const std::vector<int64_t> sizes = sizes_of_trained(Model(make().model));
    const BucketLayout layout(sizes, 4, 64);
    const int64_t values = ValueLayout(layout, 2, std::vector<int64_t>(sizes.size(), 8)).part_bytes(0)[0];
    const double expected = 4.0 * static_cast<double>(layout.size()) + static_cast<double>(values),
                 sent = comm.at("sent_bytes").as_double();
    CHECK((sent > expected && sent < 1.05 * expected));
  }
  CHECK(steps == 7);
}

TEST_CASE("the ranks of a host share its memory", "[fast]") {
  const int64_t available = available_memory(DeviceKind::cpu).bytes;
  const auto check = [&](int64_t each) {
    run_ranks(3, [&](Communicator& communicator) {
      HostExchange host(communicator, DeviceKind::cpu);
      check_host_memory(host, each);
    });
  };
  CHECK_NOTHROW(check(available / 8));
  CHECK_THROWS_WITH(check(available / 2),
                    Contains("the 3 ranks on " + host_name() + " do not fit") && Contains("for this one"));
}

FOLDER_TEST("an error of one rank ends the others", "[fast]") {
  const MakeRun make = [&] { return wide_run(folder, changes(folder, 4)); };
  fs::create_directories(folder / "run");
  folder.write("run/checkpoints", "a file where a folder must be");
  CHECK_THROWS_AS(run_split(folder / "run", make, {.ranks = 4}), Error);
}

FOLDER_TEST("ranks whose values differ save nothing", "[fast]") {
  const std::string damaged = "blocks.1.ffn.up_proj.weight";
  const auto damage = [&](Trainer& trainer, int rank) {
    const Tensor& value = trainer.params().find(damaged)->value;
    if (rank == 1) { value.as<double>()[value.numel() - 1] += 1e-9; }
  };
  Heard heard;
  CHECK_THROWS_WITH(
      run_split(
          folder / "run", [&] { return wide_run(folder, changes(folder, 2)); }, {.ranks = 2, .zero = 0}, heard, {}, {},
          damage),
      Contains(damaged) && Contains("the values of rank 1 differ from those of rank 0; nothing is saved"));
  CHECK(CheckpointFolder(folder / "run" / "checkpoints").steps().empty());
}

FOLDER_TEST("a weight that changes on one rank during a run ends it at the next save", "[fast]") {
  const int zero = GENERATE(0, 1);
  const bool overlap = GENERATE(false, true);
  Trainer* first = nullptr;
  Heard heard;
  heard.on_line = [&](const std::string& line) {  // the end of the flat order is not the first rank's
    if (line.find("step 2/7") != std::string::npos) {
      first->params().find("embed.weight")->value.as<double>()[0] += 1e-9;
    }
  };
  CHECK_THROWS_AS(
      run_split(
          folder / "run", [&] { return wide_run(folder, changes(folder, 2)); },
          {.ranks = 2, .zero = zero, .bucket_mib = 1, .overlap = overlap}, heard, {}, {}, keep_first(first)),
      NumericError);
  CHECK(CheckpointFolder(folder / "run" / "checkpoints").steps() == std::vector<int64_t>{1});
}

FOLDER_TEST("other ranks keep logs of their own", "[fast]") {
  REQUIRE(run_split(folder / "run", [&] { return wide_run(folder, changes(folder, 4)); }, {.ranks = 2}) == 0);
  CHECK_THAT(read_file(folder / "run" / "logs" / "rank_00001.log"), Contains("rank 1: ") && Contains("7/7"));
}

FOLDER_TEST("ranks share what they exchange without a race", "[threads]") {
  REQUIRE(run_split(folder / "run", [&] { return wide_run(folder, changes(folder, 4, R"({"steps": 2})")); },
                    {.ranks = 2}) == 0);
}
