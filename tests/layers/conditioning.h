#pragma once
// What rounding the weights alone does to a model's outputs: no computation in that precision can be expected to be
// nearer to fp64.
#include "core/files.h"
#include "core/random.h"
#include "tests/layers/harness.h"

namespace hebb::testing {

/// The largest error of each tensor, relative to its largest entry: of the logits, and of gradients by parameter.
using Errors = std::map<std::string, double>;

inline Errors errors(const TraceOutput& found, const TraceOutput& expected) {
  Errors out{{"logits", compare(found.logits.values, expected.logits.values).relative()}};
  for (const auto& [name, gradient] : expected.grads) {
    const Difference d = compare(found.grads.at(name).values, gradient.values);
    out[name] = d.largest > 1e-9 ? d.relative() : 0.0;  // gradients of 0, to which sums of rounded terms come near
  }
  return out;
}

/// Every floating-point parameter times 1 + u, |u| <= 2^-24: half a unit of fp32 in the last place.
inline void round_weights(TestModel& m, uint64_t seed) {
  for (const auto& p : m.model->params().all()) {
    if (p->spec.kind != ParamKind::buffer) {
      Rng rng(seed, p->name());
      m.change(*p, [&](std::vector<double>& values) {
        for (double& x : values) { x *= 1 + (2 * rng.uniform() - 1) * 0x1p-24; }
      });
    }
  }
}

/// A golden case in fp64, what its model decides there (to be forced elsewhere), and the largest errors of four
/// roundings of its weights.
struct Conditioning {
  TraceOutput exact;
  Errors moved;

  explicit Conditioning(const std::string& folder) {
    const std::string json = read_file(folder + "/model.json");
    const TraceInput input = read_trace_input(folder + "/rows.safetensors");
    TraceOptions options = golden_options(folder);
    const auto run = [&](uint64_t seed) {
      TestModel m(json, DType::f64);
      m.load(folder + "/weights.safetensors");
      if (seed > 0) { round_weights(m, seed); }
      return m.run_first(input, options);
    };
    options.inside = true;
    exact = run(0);
    options.inside = false;
    options.forced = exact.inside;
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      for (const auto& [tensor, error] : errors(run(seed), exact)) { moved[tensor] = std::max(moved[tensor], error); }
    }
  }

  /// What fp32, which rounds at each of some ten operations between weights and a gradient, may be off by: `usual`, or
  /// where sums cancel or norms amplify 16 times what the rounding of the weights does. (Most: 3 times; the worst of
  /// the golden cases' 900 tensors on the CPU: 10.5.)
  double limit(const std::string& tensor, double usual) const { return std::max(usual, 16 * moved.at(tensor)); }
};

}  // namespace hebb::testing
