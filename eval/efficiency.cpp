// What a checkpoint's model costs: counted, and measured on this machine (docs/evaluations/cost.md).
#include "core/parallel.h"
#include "eval/evaluation.h"
#include "inspect/bench.h"
#include "inspect/plan.h"
#include "train/device_peak.h"

namespace hebb {
namespace {

bool allows_tf32(const Json& config) {
  const Json* tf32 = config.find_path("train.allow_tf32");
  return tf32 != nullptr && *tf32 == Json(true);
}

class Efficiency final : public EvalTask {
 public:
  void fields(Fields& f) override {
    f.field("sequence_length", length_)
        .min(1)
        .unit("tokens")
        .help("Row length of the FLOP figures and of the training steps. Default: train.sequence_length, else 1,024.");
    f.field("training_rows", training_rows_)
        .min(0)
        .help("Rows of a measured training step; 0: measure none. Default: the run's micro-batch, else 1.");
    f.field("positions", positions_)
        .min(1)
        .unit("tokens")
        .help("Contexts at which reading and generating are measured. Default: the row length.");
    f.field("batch", batch_).min(1).help("Rows that are decoded at once, measured beside one row.");
  }

  bool has_items() const override { return false; }

  EvalResult run(EvalContext& c) override {
    const Json& config = c.model.source().config;
    const int64_t length = length_.value_or(c.sequence_length > 0 ? c.sequence_length : 1024);
    const int64_t rows = training_rows_.value_or(static_cast<int64_t>(config.number_at("train.micro_batch_size", 1)));
    const std::vector<int64_t> positions = positions_.empty() ? std::vector<int64_t>{length} : positions_;
    std::vector<int64_t> batches{1};
    if (batch_ > 1) { batches.push_back(batch_); }
    c.progress.begin("efficiency", (rows > 0 ? 1 : 0) + positions.size() * batches.size());
    uint64_t done = 0;
    EvalResult r;
    count(c, length, r);
    if (rows > 0) {
      measure_training(c, rows, length, r);
      c.progress.update(++done);
    }
    Json decoding = Json::array();
    const auto weights = c.model.save_fast_weights();
    for (const int64_t position : positions) {
      for (const int64_t batch : batches) {
        c.poll();
        c.model.arena().reset_peak();
        const DecodeSpeed speed = measure_decode(c.model.model(), c.model.stream(), c.model.arena(), batch, position,
                                                 c.model.reading(), c.model.compute().cuda_graphs);
        c.model.restore_fast_weights(weights);
        decoding.push(Json::object({{"position", position},
                                    {"rows", batch},
                                    {"prefill_tokens_per_s", speed.prefill_tokens_per_s},
                                    {"decode_ms_per_token", speed.ms_per_token},
                                    {"peak_bytes", c.model.arena().peak_bytes()}}));
        c.progress.update(++done);
      }
    }
    c.progress.end();
    r.series.set("decoding", decoding);
    const Json machine = Json::object({{"name", machine_name(c.model.compute().device)}, {"threads", threads()}});
    r.series.set("machine", Json::array({machine}));
    return r;
  }

 private:
  static void count(EvalContext& c, int64_t length, EvalResult& r) {
    const Plan plan = plan_model(c.model.source().model, length);
    const ParameterCounts& p = plan.parameters;
    for (const auto& [name, value] :
         {std::pair{"params.total", p.total}, std::pair{"params.non_embedding", p.non_embedding},
          std::pair{"params.state", p.state}, std::pair{"params.active", p.active}}) {
      r.metric(name, static_cast<double>(value), 1);
    }
    r.metric("flops.forward_per_token", plan.flops_per_token, 1);
    r.metric("flops.training_per_token", 3 * plan.flops_per_token, 1);
    Json bytes = Json::array();
    for (size_t i = 0; i < plan.contexts.size(); ++i) {
      Json layers = Json::object();
      for (const LayerPlan& layer : plan.layers) {
        if (layer.state_bytes[i] > 0) { layers.set(layer.name, layer.count * layer.state_bytes[i]); }
      }
      bytes.push(Json::object({{"tokens", plan.contexts[i]}, {"bytes", plan.state_bytes[i]}, {"by_layer", layers}}));
    }
    r.series.set("state_bytes", bytes);
  }

  static void measure_training(EvalContext& c, int64_t rows, int64_t length, EvalResult& r) {
    constexpr int64_t kWarmup = 5, kSteps = 20;
    const Compute compute = c.model.compute();
    const Json& config = c.model.source().config;
    const ModelSpeed speed =
        measure_model(read_model(config), compute, {rows, length, kWarmup, kSteps, allows_tf32(config)});
    const double tokens_per_s = speed.median_tokens_per_s();
    r.metric("train.tokens_per_s", tokens_per_s, kSteps);
    r.metric("train.samples_per_s", tokens_per_s / static_cast<double>(length), kSteps);
    r.metric("train.rows", static_cast<double>(rows), 1);
    r.metric("train.peak_bytes", static_cast<double>(speed.peak_bytes), 1);
    std::optional<double> peak = device_peak(compute, allows_tf32(config));
    if (const Json* tflops = config.find_path("train.peak_tflops"); tflops != nullptr && tflops->is_number()) {
      peak = tflops->as_double() * 1e12;
    }
    if (peak) { r.metric("mfu", speed.flops_per_token * tokens_per_s / *peak, kSteps); }
  }

  std::optional<int64_t> length_, training_rows_;
  std::vector<int64_t> positions_;
  int64_t batch_ = 8;
};

}  // namespace

std::unique_ptr<EvalTask> make_efficiency() { return std::make_unique<Efficiency>(); }

}  // namespace hebb
