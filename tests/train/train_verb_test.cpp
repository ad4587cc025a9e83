// `hebb train` as users meet it: exit codes, messages, signals.
#include <fmt/ranges.h>

#include <sys/resource.h>
#include <sys/stat.h>

#include <set>

#include "core/progress.h"
#include "core/random.h"
#include "core/stop_signals.h"
#include "tests/temp_folder.h"
#include "tests/train/faults.h"
#include "tests/train/process.h"
#include "train/checkpoint.h"
#include "train/memory_plan.h"
#include "train/run_config.h"

namespace {

/// A folder with a run configuration of a small gdn model and its tokens.
class RunFiles {
 public:
  explicit RunFiles(
      const std::string& train = R"("steps": 6, "batch_size": 4, "sequence_length": 16, "log_every": 1)") {
    Rng rng(4, "test tokens");
    std::string bytes;
    for (int i = 0; i < 4000; ++i) {
      bytes.push_back(static_cast<char>(rng.below(40)));
      bytes.push_back('\0');
    }
    folder.write("tokens.bin", bytes);
    folder.write("run.json", R"({
 "name": "small",
 "model": {"vocab_size": 40, "hidden_size": 16, "num_layers": 2,
   "layers": {"mix": {"type": "gdn", "num_heads": 2, "key_head_dim": 4, "value_head_dim": 4},
              "mlp": {"type": "swiglu", "intermediate_size": 20}},
   "pattern": [{"mixer": "mix", "ffn": "mlp"}]},
 "data": {"sources": [{"path": "tokens.bin", "format": "raw_u16"}]},
 "train": {)" + train + R"(},
 "optimizer": {"lr": 1e-3}
})");
  }
  /// Runs the program, which must end with this exit code.
  Result call(const std::vector<std::string>& arguments, int code = 0) const {
    const Result result = run_hebb(arguments, folder / "output", folder.path());
    INFO(fmt::format("{}\n{}{}", fmt::join(arguments, " "), result.out, result.err));
    REQUIRE(result.code == code);
    return result;
  }
  Result train(std::vector<std::string> more = {}, int code = 0) const {
    more.insert(more.begin(), {"train", "run.json"});
    return call(more, code);
  }
  std::unique_ptr<Process> start(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"train", "run.json"});
    return std::make_unique<Process>(more, folder / "started", folder.path());
  }
  fs::path run() const { return folder / "runs" / "small"; }
  std::string tensors(int64_t step) const {
    return read_file(checkpoint(step) / "model.safetensors") + read_file(checkpoint(step) / "optimizer.safetensors");
  }
  fs::path checkpoint(int64_t step) const { return run() / "checkpoints" / CheckpointFolder::name_of(step); }

  TempFolder folder;
};

}  // namespace

TEST_CASE_METHOD(RunFiles, "train runs in runs/NAME, prints plain lines, and goes on when started again") {
  const Result first = train({"train.steps=4"});
  CHECK(first.err.empty());
  CHECK(first.out.starts_with("hebb "));
  CHECK_THAT(first.out, Contains("\nstep 4/4 loss "));
  CHECK(fs::exists(checkpoint(4) / "model.safetensors"));
  CHECK_THAT(train().out, Contains("resuming after step 4") && Contains("\nstep 5/6 loss "));
}

TEST_CASE_METHOD(RunFiles, "overrides come as key=value, --key value and --key=value") {
  const Result result = train({"train.seed=3", "--optimizer.lr", "0.25", "--train.log_every=2", "--name", "other",
                               "--threads", "1", "--precision", "fp64", "--device", "cpu", "--print-config"});
  const Json config = parse_json(result.out, "printed");
  CHECK(config.at("train").at("seed").as_int() == 3);
  CHECK(config.at("optimizer").at("lr").as_double() == 0.25);
  CHECK(config.at("train").at("log_every").as_int() == 2);
  CHECK(config.at("name").as_string() == "other");
  const std::string longer_than_a_file_name(400, '0');
  const Result long_value = train({"optimizer.lr=0.25" + longer_than_a_file_name, "--print-config"});
  CHECK(parse_json(long_value.out, "printed").at("optimizer").at("lr").as_double() == 0.25);
  CHECK(config.at("train").at("threads").as_int() == 1);
  CHECK(config.at("train").at("precision").as_string() == "fp64");
  CHECK_FALSE(fs::exists(folder / "runs"));
  folder.write("printed/again.json", result.out);
  const Result again = call({"train", "printed/again.json", "--print-config"});
  CHECK(again.out == result.out);
}

TEST_CASE_METHOD(RunFiles, "a tokenizer that is not there is an error that names the data set which names it") {
  folder.write("set/dataset.json", R"({"format": 1, "dtype": "u16", "vocab_size": 40, "shards": [], "total_tokens": 0,
    "total_documents": 0, "tokenizer": {"type": "sentencepiece", "file": "lost/it.model"}})");
  const Result result = train({R"(data.sources=[{"path": "set"}])"}, 3);
  CHECK_THAT(result.err, Contains((folder / "set/lost/it.model").string() + ": no such file; " +
                                  (folder / "set/dataset.json").string() + " names it"));
}

TEST_CASE_METHOD(RunFiles, "errors are one line with the exit code of their kind") {
  const auto check = [&](const std::vector<std::string>& arguments, int code, const std::string& message) {
    const Result result = train(arguments, code);
    CHECK(result.err.starts_with("error: "));
    CHECK(result.err.find('\n') == result.err.size() - 1);
    CHECK_THAT(result.err, Contains(message));
  };
  check({"train.batch_size=0"}, 2, "train.batch_size: found 0, expected an integer >= 1");
  check({"--train.batchsize", "3"}, 2, "batch_size");
  check({"--resum", "never"}, 2, "unknown option --resum; did you mean --resume?");
  check({"--train.steps"}, 2, "option --train.steps needs a value");
  check({"second.json"}, 2, "unexpected argument second.json");
  check({"data.sources.0.path=nothing.bin"}, 3, "nothing.bin");
  check({"model.vocab_size=30"}, 3, "tokens.bin");
  check({"--run-dir", "tokens.bin/run"}, 4, "cannot create the folder");
  check({"--resume", "nowhere"}, 4, "nowhere: cannot resume from here");
  check({"--init-from", "tokens.bin"}, 4, "tokens.bin");
  check({"optimizer.lr=1e30", "optimizer.clip_norm=0", "train.max_consecutive_skips=0"}, 6, "step ");
  CHECK_THAT(call({"train"}, 2).err, Contains("no CONFIG given"));
}

TEST_CASE("a second process in the run folder stops with exit code 4 and names the first") {
  const RunFiles files(R"("steps": 1000000, "batch_size": 4, "sequence_length": 16, "log_every": 1)");
  const auto first = files.start();
  REQUIRE(first->prints("\nstep 1/"));
  CHECK_THAT(files.train({}, 4).err, Contains("in use by process " + std::to_string(first->pid()) + " on "));
}

TEST_CASE("signals save and stop with exit code 75, and the run goes on") {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP, SIGPIPE, SIGXCPU}) {
    const int second = signal == SIGINT ? SIGTERM : SIGINT;  // as a launcher hands it on
    const RunFiles files(R"("steps": 1000000, "batch_size": 4, "sequence_length": 16, "log_every": 1)");
    const auto process = files.start();
    REQUIRE(process->prints("\nstep 3/"));
    process->kill(signal);
    process->kill(second);
    process->expect(75);
    CHECK_THAT(process->out(), Contains(fmt::format(" by {};", signal_name(signal))) ||
                                   Contains(fmt::format(" by {};", signal_name(second))));
    const CheckpointFolder checkpoints(files.run() / "checkpoints");
    const auto saved = checkpoints.latest();
    REQUIRE(saved);
    CHECK(*saved >= 3);
    const Result again = files.train({"train.max_minutes=1e-9", "train.exit_code_on_stop=9"}, 9);
    CHECK_THAT(again.out, Contains("resuming after step " + std::to_string(*saved)));
  }
}

TEST_CASE(
    "data that is cut under a run is an error that names the file, the steps before are saved, and the run goes on") {
  const RunFiles files(
      R"("steps": 1000000, "batch_size": 4, "sequence_length": 16, "log_every": 1, "checkpoint": {"every": 1000000})");
  const std::string tokens = read_file(files.folder / "tokens.bin");
  const auto process = files.start();
  REQUIRE(process->prints("step 3/"));
  REQUIRE(::truncate((files.folder / "tokens.bin").c_str(), GENERATE(0, 100)) == 0);
  process->expect(3);
  CHECK_THAT(process->out(), Contains("\nsaved "));
  CHECK_THAT(process->err(), Contains("error: ") && Contains("tokens.bin: cannot read the mapped file"));
  CHECK_THAT(read_file(files.run() / "train.log"),
             Contains("the last checkpoint is that of step ") && Contains("tokens.bin: cannot read the mapped file"));
  write_file_atomic(files.folder / "tokens.bin", tokens);
  const Result again = files.train({"train.max_minutes=1e-9"}, 75);
  CHECK_THAT(again.out, Contains("resuming after step "));
}

TEST_CASE("a limit of the process' memory is what the plan goes by") {
  const RunFiles files;
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_AS, &before) == 0);
  const rlimit low{rlim_t{40} << 30, before.rlim_max};
  const bool is_set = ::setrlimit(RLIMIT_AS, &low) == 0;
  const Result result = files.train({"model.vocab_size=2000000000", "model.hidden_size=120"}, 5);
  ::setrlimit(RLIMIT_AS, &before);
  REQUIRE(is_set);
  INFO(result.err);
  const bool is_larger = memory_left().bytes > (int64_t{40} << 30);  // than what is free
  CHECK((!is_larger || Contains(" available under ulimit -v").match(result.err)));
}

TEST_CASE("the memory of a run is that which it holds itself") {
  const RunFiles files(R"("steps": 3, "batch_size": 4, "sequence_length": 16, "log_every": 1)");
  const std::string one = read_file(files.folder / "tokens.bin");
  std::string many;
  for (size_t i = 0; many.size() < (size_t{64} << 20); ++i) { many += one; }
  write_file_atomic(files.folder / "many.bin", many);
  const auto memory = [&](const std::string& data) {
    fs::remove_all(files.run());
    files.train({"data.sources.0.path=" + data, "data.sources.0.split_token=0"});  // reads all of it
    const std::string metrics = read_file(files.run() / "metrics.jsonl");
    const size_t last = metrics.rfind('\n', metrics.size() - 2);
    return parse_json(metrics.substr(last == std::string::npos ? 0 : last + 1), "metrics.jsonl")
        .at("mem_bytes")
        .as_int();
  };
  CHECK(memory("many.bin") < memory("tokens.bin") + (int64_t{48} << 20));
}

TEST_CASE("a signal during the start ends the program at once and leaves nothing") {
  for (const int signal : {SIGTERM, SIGINT}) {
    const RunFiles files;
    const auto process = files.start({"model.num_layers=10000"});
    REQUIRE(process->prints("\nrun small in "));
    process->kill(signal);
    process->expect(128 + signal);
    CHECK_FALSE(fs::exists(files.run().parent_path()));
    files.train({"--resume", "never"});
  }
}

TEST_CASE_METHOD(RunFiles, "a start that fails leaves no run folder behind, and a note in one that was there") {
  train({"data.sources.0.path=nothing.bin"}, 3);
  CHECK_FALSE(fs::exists(run()));
  train();
  train({"data.sources.0.path=nothing.bin", "train.steps=7"}, 3);
  const auto log = [&] { return read_file(run() / "train.log"); };
  CHECK(log().find(" [info] rank 0: hebb " HEBB_VERSION ", commit ") ==
        std::string("2026-11-23 09:10:11.123 +01:00").size());
  CHECK_THAT(log(), Contains(" [error] rank 0: ") && Contains("nothing.bin: "));
  train({"optimizer.lr=0.5"}, 2);
  CHECK_THAT(log(), Contains("the configuration is not that of the run"));
  train();
}

TEST_CASE_METHOD(RunFiles, "absurd sizes are refused at once") {
  for (const char* size : {"model.num_layers=100000000", "train.threads=100000", "train.steps=9223372036854775807"}) {
    CHECK_THAT(train({size}, 2).err, Contains("expected an integer"));
  }
}

TEST_CASE_METHOD(RunFiles, "every verb that reads weights refuses a damaged checkpoint") {
  train({"model.vocab_size=260"});
  const fs::path weights = checkpoint(6) / "model.safetensors";
  std::string bytes = read_file(weights);
  bytes[bytes.size() - 5] = static_cast<char>(bytes[bytes.size() - 5] ^ 1);
  write_file_atomic(weights, bytes);
  folder.write("eval.json", R"({"evaluations": [{"name": "a", "kind": "mqar", "vocab": 30, "samples": 1,
                                                       "cases": [{"length": 16, "pairs": 2}]}]})");
  const std::vector<std::vector<std::string>> verbs = {
      {"inspect", "runs/small/checkpoints/step_00000006"},
      {"eval", "eval.json", "--checkpoint", "runs/small"},
      {"generate", "runs/small", "--prompt", "a", "--tokenizer", "bytes"},
      {"train", "run.json", "--run-dir", "other", "--init-from", "runs/small", "model.vocab_size=260"},
      {"train", "run.json", "train.steps=7", "model.vocab_size=260"}};
  for (const auto& verb : verbs) {
    CHECK_THAT(call(verb, 4).err, Contains("the checkpoint is damaged: model.safetensors: found CRC-32 "));
  }
}

TEST_CASE_METHOD(RunFiles, "a run whose steps were skipped says so at the end") {
  const Result result =
      train({"optimizer.lr=1e30", "optimizer.clip_norm=0", "schedule.warmup_steps=0", "schedule.type=constant"});
  CHECK_THAT(result.out, Contains("of 6 steps were skipped"));
}

TEST_CASE("killed at any moment, also while it writes a checkpoint, a run comes out the same", "[slow]") {
  const std::string settings =
      R"("steps": 60, "batch_size": 4, "sequence_length": 16, "log_every": 7, "checkpoint": {"every": 2})";
  const RunFiles straight(settings);
  straight.train();
  const auto bytes = [](const RunFiles& files) {
    Json loader = parse_json_file((files.checkpoint(60) / "state.json").string()).at("loader");
    loader.erase("sources");  // holds the path
    return files.tensors(60) + loader.dump();
  };
  const auto losses = [](const RunFiles& files) {
    std::string all;
    std::ifstream metrics(files.run() / "metrics.jsonl");
    for (std::string text; std::getline(metrics, text);) {
      const Json line = parse_json(text, "metrics.jsonl");
      all += line.at("step").dump() + " " + line.at("loss").dump() + " " + line.at("grad_norm").dump() + "\n";
    }
    return all;
  };
  Rng rng(1, "moments");
  auto files = std::make_unique<RunFiles>(settings);
  int kills = 0, in_writing = 0, finished = 0;
  while (kills < 60 || in_writing < 5 || finished < 1) {
    REQUIRE(kills < 2000);
    const auto process = files->start();
    if (process->ends_within(static_cast<int>(rng.below(400)))) {
      process->expect(0);
      CHECK(bytes(*files) == bytes(straight));
      CHECK(losses(*files) == losses(straight));
      ++finished;
      files = std::make_unique<RunFiles>(settings);
      continue;
    }
    process->kill(SIGKILL);
    process->wait();
    ++kills;
    const fs::path checkpoints = files->run() / "checkpoints";
    if (fs::exists(checkpoints)) {
      for (const auto& entry : fs::directory_iterator(checkpoints)) {
        in_writing += entry.path().filename().string().starts_with(".tmp-step") ? 1 : 0;
      }
    }
  }
  INFO(kills << " kills, " << in_writing << " while writing, " << finished << " runs");
  files->train();
  CHECK(bytes(*files) == bytes(straight));
}

TEST_CASE("killed in front of each step of a save, a run keeps a whole checkpoint and comes out the same") {
  const std::string settings =
      R"("steps": 4, "batch_size": 4, "sequence_length": 16, "log_every": 7, "checkpoint": {"every": 2, "keep": 1})";
  const RunFiles straight(settings);
  straight.train();
  std::set<std::string> reached;
  int call = 1;
  for (;; ++call) {
    CAPTURE(call);
    const RunFiles files(settings);
    int code = 0;
    {
      const Fault fault = Fault::at_call(files.run() / "checkpoints", call, SIGKILL);
      code = files.start()->wait();
    }
    if (code == 0) { break; }
    REQUIRE(code == 128 + SIGKILL);
    const std::string before = latest_checkpoint(files.run());
    reached.insert(before);
    const Result again = files.train();
    const std::string said = before.empty()              ? ""
                             : before == "step_00000004" ? "complete: 4 steps"
                                                         : "\nresuming after step 2 from ";
    CHECK_THAT(again.out, Contains(said));
    CHECK((files.tensors(4) == straight.tensors(4)));
    CHECK(leftovers(files.run()) == "");
  }
  CHECK(call > 40);  // two saves of five files each, and the removal of the first
  CHECK(reached == std::set<std::string>{"", "step_00000002", "step_00000004"});
}

/// Largest resident memory of a process so far [bytes].
double peak_bytes(pid_t pid) {
  const std::string status = read_file("/proc/" + std::to_string(pid) + "/status");
  return 1024 * std::stod(status.substr(status.find("VmHWM:") + 6));
}

/// What the program needs without a model, 0.2 GiB where it is linked with CUDA's libraries: seen while it reads a
/// configuration that does not come.
double program_bytes(const fs::path& folder) {
  const fs::path pipe = folder / "never.json";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  Process process({"plan", "never.json"}, folder / "never", folder);
  int writer = -1;
  for (int waited = 0; writer < 0 && waited < 600000; ++waited) {  // fails while nobody reads
    writer = ::open(pipe.c_str(), O_WRONLY | O_NONBLOCK);
    if (writer < 0) { ::usleep(1000); }
  }
  REQUIRE(writer >= 0);
  const double bytes = peak_bytes(process.pid());
  ::close(writer);
  process.wait();
  return bytes;
}

TEST_CASE_METHOD(RunFiles, "train runs the evaluations of its configuration after the last step, once") {
  const std::vector<std::string> list = {
      R"(eval={"seed": 9, "evaluations": [{"name": "recall", "kind": "mqar", "vocab": 30, "cases": [{"length": 16, "pairs": 2}], "samples": 3}]})"};
  CHECK_THAT(train(list).out, Contains("\nrecall (mqar): ok"));
  const fs::path file = run() / "evals" / "step_00000006" / "recall.json";
  const Json result = parse_json_file(file.string());
  CHECK(result.at("config").at("seed").as_int() == 9);
  const Json config = parse_json_file((run() / "config.json").string());
  CHECK(result.at("precision") == config.at("train").at("precision"));
  CHECK(result.at("model_hash").as_string() == config_hash(config.at("model")));
  CHECK_THAT(train(list).out, Contains("recall (mqar): ok, kept"));
  CHECK(parse_json_file(file.string()) == result);
}

TEST_CASE_METHOD(RunFiles, "evaluations that cannot be read are refused before training") {
  CHECK_THAT(train({R"(eval={"evaluations": [{"name": "a", "kind": "mqra"}]})"}, 2).err,
             Contains("eval.evaluations.0.kind: found \"mqra\""));
  CHECK_FALSE(fs::exists(run()));
}

TEST_CASE_METHOD(RunFiles, "sizes beyond every memory are errors that name them") {
  CHECK_THAT(train({"model.vocab_size=4611686018427387904"}, 2).err,
             Contains("model.vocab_size: found 4611686018427387904, expected an integer below 2^31"));
  CHECK_THAT(train({"train.sequence_length=1000000000000000"}, 2).err,
             Contains("train.sequence_length: found 1000000000000000, expected an integer >= 1 and <= 67108864"));
  CHECK_THAT(train({"model.vocab_size=2147483647", "model.hidden_size=2147483647"}, 2).err,
             Contains("embed.weight: found the shape [2147483647, 2147483647], expected at most 2^48 elements"));
}

TEST_CASE("memory grows by what the plan says", "[slow]") {
  // Mostly activations, and mostly parameters; both above 1 GiB.
  const std::vector<std::vector<std::string>> shapes = {
      {"model.hidden_size=48", "model.num_layers=9", "model.layers.mlp.intermediate_size=200", "train.batch_size=20",
       "train.sequence_length=2000"},
      {"model.vocab_size=60000", "model.hidden_size=600", "train.batch_size=1", "train.sequence_length=40"}};
  for (const auto& shape : shapes) {
    const RunFiles files(R"("steps": 1000000, "batch_size": 4, "sequence_length": 16, "log_every": 1)");
    RunConfig config = read_run_config((files.folder / "run.json").string(), shape);
    resolve(config);
    const auto planned = static_cast<double>(plan_memory(config).total_bytes());
    REQUIRE(planned > 1024.0 * 1024 * 1024);
    const auto process = files.start(shape);
    REQUIRE(process->prints("\nstep 2/"));
    const double peak = peak_bytes(process->pid()) - program_bytes(files.folder.path());
    INFO("planned " << format_bytes(planned) << ", found " << format_bytes(peak));
    CHECK(peak <= 1.1 * planned);
    CHECK(peak >= 0.9 * planned);
  }
}

TEST_CASE_METHOD(RunFiles, "a run whose data is missing says what makes it, and leaves no folder") {
  fs::remove(folder / "tokens.bin");
  CHECK_THAT(train({}, 3).err, Contains("; hebb data encode makes data sets of text (docs/data.md)\n"));
  CHECK(!fs::exists(run()));
  CHECK_THAT(train({"name=quickstart"}, 3).err, Contains("; tools/quickstart.sh makes this data and trains on it\n"));
}
