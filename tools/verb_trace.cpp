#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "core/files.h"
#include "core/parallel.h"
#include "inspect/trace_file.h"
#include "tools/command_line.h"
#include "tools/output_lock.h"
#include "tools/verbs.h"
#include "train/choose_device.h"
#include "train/model_source.h"

namespace hebb {
namespace {

struct Options {
  std::string model, weights, rows, out, force;
  std::string precision = "fp64", device = "cpu", mode = "train";
  bool grads = false, inside = false;
  uint64_t seed = 0;
  int64_t step = 0;
  int threads = 0;
};

// A file of another model, or one without decisions, would change nothing: the user should know.
void require_use(const std::map<std::string, Inspector::Record>& forced, const TraceOutput& output,
                 const std::string& path) {
  const bool is_used = std::any_of(forced.begin(), forced.end(),
                                   [&](const auto& entry) { return output.inside.count(entry.first) > 0; });
  if (!is_used) {
    const std::string found = forced.empty() ? "no integer tensor" : "no name of them, but " + forced.begin()->first;
    std::string made;
    for (const auto& [name, record] : output.inside) {
      if (made.empty() && !record.integers.empty()) { made = name; }
    }
    throw DataError(path, "decisions to force", found,
                    made.empty() ? "no --force: no layer of this model decides anything"
                                 : "decisions of this model, such as " + made);
  }
}

void run_trace(const Options& o) {
  set_threads(o.threads);
  std::optional<OutputLock> lock;  // before the work; none for devices and pipes
  if (!is_special_file(o.out)) { lock.emplace(o.out); }
  const Compute compute = choose_compute(o.device, o.precision, "--");
  const ModelSource source = read_model_source(o.model);
  const fs::path weights = o.weights.empty() ? source.weights : fs::path(o.weights);
  if (weights.empty()) {
    throw ConfigError("--weights", "nothing", "a safetensors file, since " + o.model + " holds no weights");
  }
  Stream stream{compute.device};
  Arena arena(compute.device);
  Model model(source.model);
  model.params().allocate(arena, compute.dtype, o.grads);
  load_weights(weights, stream, model.params());
  TraceOptions options;
  options.training = o.mode == "train";
  options.grads = o.grads;
  options.inside = o.inside || !o.force.empty();  // forced decisions are compared with the names of those made
  options.seed = o.seed;
  options.step = o.step;
  if (!o.force.empty()) { options.forced = read_forced(o.force); }
  const TraceInput input = read_trace_input(o.rows);
  if (o.grads && input.targets.empty()) {
    throw ConfigError("--grads", "rows without targets", "targets in " + o.rows);
  }
  if (options.training) { model.begin_step(stream, o.step); }  // the rows are the step's first micro-batch
  TraceOutput output = trace(model, stream, arena, input, options);
  if (!o.force.empty()) { require_use(options.forced, output, o.force); }
  if (!o.inside) { output.inside.clear(); }
  write_trace(lock ? lock->temporary().string() : o.out, output, compute.dtype == DType::f64);
  if (lock) { lock->publish(); }
  if (output.has_loss) { std::printf("loss %.17g\n", output.loss); }
  std::printf("wrote %s\n", o.out.c_str());
}

}  // namespace

void add_trace_verb(Command program) {
  Command verb =
      program.verb("trace", "Runs one micro-batch and writes logits, loss, gradients and decisions, tensor by tensor");
  const auto o = std::make_shared<Options>();
  verb.option("MODEL", o->model, "A model object, a run configuration or a checkpoint folder").required();
  verb.option("--weights", o->weights, "Weights (default: those of the checkpoint)");
  verb.option("--rows", o->rows, "Rows: inputs I64 [B, T], optionally targets (-100 = ignored) and doc_ids").required();
  verb.option("--out", o->out, "The safetensors file to write").required();
  verb.option("--precision", o->precision, "Number format").one_of({"fp64", "fp32", "bf16"});
  verb.option("--device", o->device, "Where to compute").one_of({"cpu", "cuda", "auto"});
  verb.option("--mode", o->mode, "Training or evaluation rules of the layers").one_of({"train", "eval"});
  verb.flag("--grads", o->grads, "Also the gradient of the mean loss for every parameter that it reaches");
  verb.flag("--inside", o->inside, "Also the layers' decisions and scores");
  verb.option("--force", o->force, "Decisions to take as given (integers of a --inside file)");
  verb.option("--seed", o->seed, "train.seed that layers see");
  verb.option("--step", o->step, "Step index that layers see [steps]").at_least(0);
  verb.option("--threads", o->threads, "Threads (0 = all cores that the process may use)").between(0, 1024);
  verb.runs([o] { run_trace(*o); });
}

}  // namespace hebb
