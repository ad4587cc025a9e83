#include "train/run_config.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/hash.h"
#include "core/key_error.h"
#include "core/names.h"

namespace hebb {

void fields(Fields& f, CheckpointConfig& c) {
  f.field("every", c.every).min(1).unit("steps").help("Distance of checkpoints. May differ when a run is resumed.");
  f.field("keep", c.keep).min(1).help("Newest checkpoints that are kept. May differ when a run is resumed.");
  f.field("keep_every", c.keep_every)
      .min(0)
      .unit("steps")
      .help("Checkpoints at multiples of this are kept for good; 0 = off. May differ when a run is resumed.");
}

void fields(Fields& f, RandomWindowConfig& c) {
  f.field("p", c.p).required().min(0).max(1).help("Probability of a step with the window.");
  f.field("window", c.window).required().min(1).unit("tokens").help("Window of attention layers without one.");
}

void fields(Fields& f, CommConfig& c) {
  f.field("reduce", c.reduce)
      .one_of({"fp32", "bf16"})
      .help(
          "bf16: ranks round what they send of gradients, half the bytes; sums stay fp32. Results depend on the number "
          "of ranks then. Stays the same when a run is resumed.");
  f.field("bucket_mib", c.bucket_mib)
      .min(1)
      .max(65536)
      .unit("MiB")
      .help("Gradients that are sent at once, of fp32. Results do not depend on it.");
  f.field("overlap", c.overlap)
      .help(
          "Gradients are sent during the backward pass, as soon as a bucket is complete, and new values arrive during "
          "the next forward pass; takes memory for one bucket. Same bits. Default: on GPUs.");
  f.field("interface", c.interface)
      .help("Network interface (eth0) or address (10.0.0.0/8) at which rank 0 is met by ranks of other hosts.");
  f.field("token_file", c.token_file)
      .help("File, readable by its owner alone, with a secret that all ranks know, beside that of the run folder.");
  f.field("init_seconds", c.init_seconds).above(0).unit("s").help("Time for all ranks to meet.");
  f.field("lost_seconds", c.lost_seconds).above(0).unit("s").help("Silence after which a rank counts as lost.");
  f.field("stall_seconds", c.stall_seconds)
      .above(0)
      .unit("s")
      .help("Time without progress of a rank that is heard, after which the run ends.");
  f.field("verify", c.verify).help("Before each checkpoint, ranks compare what must be equal on all of them.");
}

namespace {

/// More than any machine does; a step number this large is a slip of the pen.
constexpr int64_t kMostSteps = 1'000'000'000'000;
constexpr int64_t kLongestRow = int64_t{1} << 26;  // tokens; a plan takes memory and time for each
/// Rows and lanes: a product of two is exact in 64 bits.
constexpr int64_t kLargestSize = (int64_t{1} << 31) - 1;
/// Tokens of a step and of a run: what is counted of them stays below 2^63.
constexpr int64_t kMostTokensOfStep = int64_t{1} << 40, kMostTokens = int64_t{1} << 60;

/// Products of the sizes of a run; where one is too large, the error names the keys.
void check_tokens(Fields& f, const TrainConfig& c) {
  const std::string length = fmt::format("{:d} with sequence_length {:d}", c.batch_size, c.sequence_length);
  if (c.tokens_per_step() > kMostTokensOfStep) {
    f.fail("batch_size", length, "a product of at most 2^40 tokens in a step");
  }
  if (static_cast<double>(c.steps) * static_cast<double>(c.tokens_per_step()) > static_cast<double>(kMostTokens)) {
    f.fail("steps", fmt::format("{:d} with batch_size {}", c.steps, length),
           "a product of at most 2^60 tokens in a run");
  }
}

void size_fields(Fields& f, TrainConfig& c) {
  f.field("batch_size", c.batch_size)
      .required()
      .min(1)
      .max(kLargestSize)
      .unit("rows")
      .help("Rows of an optimizer step, all ranks.");
  f.field("sequence_length", c.sequence_length)
      .required()
      .min(1)
      .max(kLongestRow)
      .unit("tokens")
      .help("Tokens of a row.");
  const bool has_steps =
      f.field("steps", c.steps)
          .min(1)
          .max(kMostSteps)
          .unit("steps")
          .help("Optimizer steps (required unless tokens is given). May differ when a run is resumed.")
          .present();
  f.field("tokens", c.tokens)
      .min(1)
      .unit("tokens")
      .help(
          "Length of the run instead of steps: steps = ceil(tokens / (batch_size x sequence_length)). May differ when "
          "a run is resumed.");
  if (f.reading()) {
    if (!has_steps && !c.tokens) {
      const std::string path = f.path() + ".steps";
      throw KeyError(located(f.json().origin().str(), path), "nothing", "an integer >= 1 (required, or train.tokens)",
                     path, KeyError::Rest::values);
    }
    if (c.tokens) {
      const int64_t steps = (*c.tokens - 1) / c.tokens_per_step() + 1;
      f.require(!has_steps || c.steps == steps, "steps",
                fmt::format("{:d}, which train.tokens = {:d} gives (or only one of them)", steps, *c.tokens));
      c.steps = steps;
      f.require(steps <= kMostSteps, "tokens", fmt::format("tokens of at most {:d} steps", kMostSteps));
    }
    check_tokens(f, c);
  }
  f.field("micro_batch_size", c.micro_batch_size)
      .min(1)
      .max(kLargestSize)
      .unit("rows")
      .help(
          "Rows of one forward and backward pass on one rank. Default: batch_size / lanes at the first start. May "
          "differ when a run is resumed.");
  f.field("lanes", c.lanes)
      .min(1)
      .max(kLargestSize)
      .help(
          "Parts of a batch in which gradients are summed: runs with the same lanes have the same bits on every number "
          "of ranks that lanes allows. Default: the ranks of the first start. May differ when a run is resumed.");
  f.field("fast_batch", c.fast_batch)
      .min(1)
      .max(kLargestSize)
      .unit("rows")
      .help(
          "Rows that share fast weights in one update (fwpkm, fwmlp). Default: the rows of a micro-"
          "batch.");
}

std::string reason_against_zero(int64_t zero) {
  if (zero == 2) {
    return "0 or 1: shards of gradients would be sent after every micro-batch to save 4 bytes a parameter";
  }
  if (zero == 3) { return "0 or 1: shards of values would be gathered twice in every micro-batch"; }
  return "0 or 1";
}

void machine_fields(Fields& f, TrainConfig& c) {
  f.field("device", c.device)
      .one_of({"auto", "cpu", "cuda"})
      .help("auto: the first usable GPU unless precision is fp64, else the CPU. May differ when a run is resumed.");
  f.field("threads", c.threads)
      .min(0)
      .max(1024)
      .help(
          "CPU threads; 0 = the cores that the process may use. Results do not depend on it. May differ when a run is "
          "resumed.");
  f.field("precision", c.precision)
      .one_of({"fp32", "bf16", "fp64"})
      .help(
          "Default: bf16 on a GPU, fp32 on the CPU. fp64 is for verification, on the CPU only. bf16 on the CPU is "
          "slower than fp32.");
  f.field("recompute", c.recompute)
      .one_of({"none", "block", "mixer", "ffn"})
      .help(
          "What is computed again in the backward pass instead of kept; same bits. May differ when a run is resumed.");
  f.field("zero", c.zero)
      .min(0)
      .help(
          "0, or 1: each rank keeps a part of the optimizer's moments, with the same bits. Default: 1 for several "
          "ranks. May differ when a run is resumed.");
  f.require(c.zero.value_or(0) <= 1, "zero", reason_against_zero(c.zero.value_or(0)));
  f.object("comm", c.comm).help("How ranks meet and exchange. May differ when a run is resumed.");
  f.field("allow_tf32", c.allow_tf32).help("GPU: matrix products of fp32 round their operands to TF32.");
  f.field("cuda_graphs", c.cuda_graphs)
      .help(
          "GPU: repeating passes and optimizer steps are launched as CUDA graphs, with the same bits. May differ when "
          "a run is resumed.");
  f.field("autotune", c.autotune)
      .help(
          "GPU: the start measures which algorithm of a matrix product is the fastest of those with the same bits. May "
          "differ when a run is resumed.");
  f.field("peak_tflops", c.peak_tflops)
      .above(0)
      .unit("TFLOP/s")
      .help("Dense peak of the device, for mfu. Default: from a table of devices. May differ when a run is resumed.");
}

}  // namespace

void fields(Fields& f, TrainConfig& c) {
  size_fields(f, c);
  f.field("seed", c.seed).min(0).help("Seed of initial values, random windows and, by default, the order of rows.");
  f.field("document_mask", c.document_mask).help("Documents of a row do not see each other.");
  f.field("nonfinite", c.nonfinite)
      .one_of({"skip", "stop"})
      .help("What a step does whose loss or gradient norm is not finite.");
  f.field("max_consecutive_skips", c.max_consecutive_skips)
      .min(0)
      .unit("steps")
      .help("More skipped steps than this in a row stop the run.")
      .only_with(c.nonfinite == "skip", "nonfinite \"skip\"");
  f.object("random_window", c.random_window)
      .help("With probability p, a training step lets `attention` layers without a window use this one.");
  machine_fields(f, c);
  f.field("log_every", c.log_every)
      .min(1)
      .unit("steps")
      .help("Distance of metric lines. May differ when a run is resumed.");
  f.field("val_every", c.val_every)
      .min(0)
      .unit("steps")
      .help("Distance of validations; 0 = after the last step only. May differ when a run is resumed.");
  f.object("checkpoint", c.checkpoint).help("When checkpoints are written and kept.");
  f.field("max_minutes", c.max_minutes)
      .min(0)
      .unit("min")
      .help("Save and stop after this time; 0 = no limit. May differ when a run is resumed.");
  f.field("exit_code_on_stop", c.exit_code_on_stop)
      .min(0)
      .max(255)
      .help("Exit code after a stop by signal or time limit. May differ when a run is resumed.");
}

void fields(Fields& f, RunConfig& c) {
  f.field("name", c.name).required().help("Name of the run and, by default, of its folder under runs/.");
  f.object("model", c.model).required().help("The model (layers: one page each).");
  f.object("data", c.data).required().help("Training and validation data.");
  f.object("train", c.train).required().help("Length, batches, precision, logging, checkpoints.");
  f.object("optimizer", c.optimizer).required().help("AdamW, its groups, clipping.");
  f.object("schedule", c.schedule).help("Course of the learning rate.");
  f.field("eval", c.eval).help("Evaluations after the last step: the object that hebb eval reads.");
  if (!f.reading()) { return; }
  f.require(is_file_name(c.name), "name", "a name without / and control characters that can be a folder");
  if (c.schedule.type == "wsd") {
    const int64_t decay = c.schedule.resolved_decay_steps(c.train.steps), warmup = c.schedule.warmup_steps;
    if (warmup + decay > c.train.steps) {
      f.fail("schedule.warmup_steps", fmt::format("{:d} with {:d} decay steps", warmup, decay),
             fmt::format("together at most train.steps = {:d}", c.train.steps));
    }
  }
}

std::string config_hash(const Json& config) { return fmt::format("{:016x}", fnv1a64(config.dump(-1, true))); }

namespace {

/// Whether a resumed run may have another value at this path ("train.checkpoint.every").
bool may_differ(const std::string& path) {
  static const std::vector<std::string> allowed = {"name",
                                                   "eval",
                                                   "data.validation",
                                                   "train.steps",
                                                   "train.tokens",
                                                   "train.micro_batch_size",
                                                   "train.lanes",
                                                   "train.comm",
                                                   "train.device",
                                                   "train.threads",
                                                   "train.log_every",
                                                   "train.val_every",
                                                   "train.checkpoint",
                                                   "train.max_minutes",
                                                   "train.exit_code_on_stop",
                                                   "train.recompute",
                                                   "train.zero",
                                                   "train.cuda_graphs",
                                                   "train.autotune",
                                                   "train.peak_tflops",
                                                   "data.tokenizer.file"};
  const bool is_source_path = path.starts_with("data.sources.") && path.ends_with(".path");
  return is_source_path || std::any_of(allowed.begin(), allowed.end(),
                                       [&](const std::string& a) { return path == a || path.starts_with(a + "."); });
}

using Skips = bool (*)(const std::string& path);

void compare(const std::string& path, const Json* a, const Json* b, Skips skips, std::vector<ConfigDifference>& found) {
  static const Json absent;  // an absent key and null mean the same
  a = a != nullptr ? a : &absent;
  b = b != nullptr ? b : &absent;
  if (skips(path) || *a == *b) { return; }
  const std::string dot = path.empty() ? "" : path + ".";
  if (a->is_object() && b->is_object()) {
    for (const auto& [key, value] : a->members()) { compare(dot + key, &value, b->find(key), skips, found); }
    for (const auto& [key, value] : b->members()) {
      if (a->find(key) == nullptr) { compare(dot + key, nullptr, &value, skips, found); }
    }
  } else if (a->is_array() && b->is_array() && a->items().size() == b->items().size()) {
    for (size_t i = 0; i < a->items().size(); ++i) {
      compare(fmt::format("{}{:d}", dot, i), &a->items()[i], &b->items()[i], skips, found);
    }
  } else {
    found.push_back({path, a->found(), b->found()});
  }
}

/// train.comm.reduce as messages show it.
std::string reduce_of(const Json& config) {
  const Json* at = config.find_path("train.comm.reduce");
  return (at != nullptr && !at->is_null() ? *at : Json(CommConfig{}.reduce)).found();
}

}  // namespace

std::vector<ConfigDifference> compare_configs(const Json& stored, const Json& current) {
  std::vector<ConfigDifference> found;
  compare("", &stored, &current, may_differ, found);
  // Of train.comm this alone changes results; nothing means the default.
  const std::string before = reduce_of(stored), now = reduce_of(current);
  if (before != now) { found.push_back({"train.comm.reduce", before, now}); }
  return found;
}

std::vector<ConfigDifference> all_differences(const Json& stored, const Json& current) {
  std::vector<ConfigDifference> found;
  compare(
      "", &stored, &current, [](const std::string&) { return false; }, found);
  return found;
}

}  // namespace hebb
