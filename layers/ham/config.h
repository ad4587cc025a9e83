#pragma once
#include <optional>
#include <string>
#include <vector>

#include "kernels/head_norm/head_norm.h"
#include "layers/ham/override.h"
#include "layers/layer.h"
#include "layers/rope_config.h"

namespace hebb {

/// The configuration of `ham` (docs/layers/ham.md, Keys).
struct HamHeads {
  int64_t num_heads = 0, key_head_dim = 0, value_head_dim = 0;
  std::string activation = "silu";

  int64_t key_channels() const { return num_heads * key_head_dim; }
  int64_t value_channels() const { return num_heads * value_head_dim; }
};
struct HamRnnConfig : HamHeads {
  bool allow_neg_eigval = false;
  std::string dt_bias_init = "log_uniform";
  HeadGate output_gate = HeadGate::silu;
};
struct HamKvConfig : HamHeads {
  std::optional<RopeConfig> rope;
};
void fields(Fields& f, HamRnnConfig& c);
void fields(Fields& f, HamKvConfig& c);

struct HamRouterConfig {
  std::string type = "prediction_error";
  int64_t depth = 1, hidden = 256, heads = 1;
  bool eda = false;

  bool learned() const { return type != "prediction_error"; }
  /// Upper end of the scores.
  double range() const { return learned() ? 1.0 : 2.0; }
};
void fields(Fields& f, HamRouterConfig& c);

struct HamThresholdConfig {
  std::string mode = "learned", scope = "global";
  double tau = 0.5, target = 0.5;
  int64_t freeze_steps = 20000;
  double lr = 2.5e-4, eps = 1e-8, gain = 1.0, clip = 1.0;
  std::vector<double> betas{0.9, 0.999};

  bool operator==(const HamThresholdConfig&) const = default;
  /// Whether there is a threshold at all.
  bool present() const { return mode == "learned" || mode == "fixed"; }
};
void fields(Fields& f, HamThresholdConfig& c);

struct HamConfig final : LayerConfig {
  HamRnnConfig rnn;
  HamKvConfig kv;
  int64_t conv_size = 4, chunk_size = 64;
  enum class NormPlace { pre_conv, post_conv, none } qkv_norm = NormPlace::pre_conv;
  std::string gates = "head", aggregate = "min";
  HamRouterConfig router;
  HamThresholdConfig threshold;

  void fields(Fields& f) override;
  void check(const Fields& f, const std::string& key, const ModelConfig& model) const override;
  std::unique_ptr<Layer> make(const BuildContext& c) const override;
  StatisticsCollectors statistics(const StatisticsOptions& options) const override;
};

}  // namespace hebb
