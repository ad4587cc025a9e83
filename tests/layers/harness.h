#pragma once
// A model built from a JSON string, run in fp64 or fp32, compared with golden cases or with itself.
#include <cmath>
#include <functional>
#include <numeric>
#include <sstream>
#include <string>

#include "core/files.h"
#include "core/json.h"
#include "core/parallel.h"
#include "core/safetensors.h"
#include "inspect/trace.h"
#include "inspect/trace_file.h"
#include "tests/test.h"

namespace hebb::testing {

/// Reported as: the largest difference, relative to the largest expected entry.
struct Difference {
  double worst = 0;    // max |a - b|
  double largest = 0;  // max |b|
  size_t index = 0;
  double a = 0, b = 0;
  double relative() const { return worst / std::max(largest, 1e-300); }
};

inline Difference compare(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  Difference d;
  for (size_t i = 0; i < a.size(); ++i) {
    const double error = std::abs(a[i] - b[i]);
    d.largest = std::max(d.largest, std::abs(b[i]));
    if (!(error <= d.worst)) {  // NaN counts as worst
      d.worst = std::isnan(error) ? INFINITY : error;
      d.index = i;
      d.a = a[i];
      d.b = b[i];
    }
  }
  return d;
}

/// What is wrong unless |a - b| <= tolerance * max|b| + floor for every entry; "" otherwise.
inline std::string difference_fault(const std::string& what, const std::vector<double>& a, const std::vector<double>& b,
                                    double tolerance, double floor = 1e-12) {
  const Difference d = compare(a, b);
  if (d.worst <= tolerance * d.largest + floor) { return ""; }
  std::ostringstream text;
  text << what << ": largest difference " << d.worst << " at " << d.index << " (" << d.a << " against " << d.b
       << "), largest entry " << d.largest;
  return text.str();
}

inline void check_close(const std::string& what, const std::vector<double>& a, const std::vector<double>& b,
                        double tolerance, double floor = 1e-12) {
  CHECK(difference_fault(what, a, b, tolerance, floor) == "");
}

inline TraceOptions with_grads() {
  TraceOptions options;
  options.grads = true;
  return options;
}

/// The same with what layers decide.
inline TraceOptions inside(TraceOptions options = with_grads()) {
  options.inside = true;
  return options;
}

/// The same as evaluations read.
inline TraceOptions reading(TraceOptions options = with_grads()) {
  options.training = false;
  return options;
}

/// A `model` of one mixer "x", the inside of its object: vocabulary 29, d 14.
inline std::string small_model_json(const std::string& mixer, int64_t layers = 2) {
  return R"({"vocab_size": 29, "hidden_size": 14, "num_layers": )" + std::to_string(layers) + R"(, "layers": {"x": {)" +
         mixer +
         R"(}, "mlp": {"type": "swiglu", "intermediate_size": 11}}, "pattern": [{"mixer": "x", "ffn": "mlp"}]})";
}

/// The same with other sizes: `ffn` and `more` are insides of JSON objects.
inline std::string mixer_model_json(const std::string& mixer, int64_t d, int64_t layers = 2,
                                    const std::string& ffn = R"("type": "swiglu", "intermediate_size": 13)",
                                    int64_t vocab = 29, const std::string& more = "") {
  return R"({"vocab_size": )" + std::to_string(vocab) + R"(, "hidden_size": )" + std::to_string(d) +
         R"(, "num_layers": )" + std::to_string(layers) + R"(, "layers": {"x": {)" + mixer + R"(}, "mlp": {)" + ffn +
         R"(}}, "pattern": [{"mixer": "x", "ffn": "mlp"}])" + more + "}";
}

inline ModelConfig read_model(const std::string& json) {
  return Fields::read<ModelConfig>(parse_json(json, "test.json"), "model");
}

/// Tokens [first, first + count) of every row.
inline TraceInput part(const TraceInput& input, int64_t first, int64_t count) {
  const auto of_rows = [&](const std::vector<int64_t>& values) {
    std::vector<int64_t> out;
    for (int64_t b = 0; b < input.rows && !values.empty(); ++b) {
      const auto begin = values.begin() + b * input.length + first;
      out.insert(out.end(), begin, begin + count);
    }
    return out;
  };
  return {input.rows, count, of_rows(input.inputs), of_rows(input.targets), of_rows(input.doc_ids)};
}

/// One of the rows.
inline TraceInput row_of(TraceInput input, int64_t row) {
  const int64_t length = input.length;
  input.length *= input.rows;
  input.rows = 1;
  return part(input, row * length, length);
}

class TestModel {
 public:
  /// json: a `model` object. Parameters are initialised from `seed`; matrices get standard deviation
  /// `std` > 0 instead of init_std when given, so that small models are not degenerate.
  explicit TestModel(const std::string& json, DType dtype = DType::f64, uint64_t seed = 1, double std = 0)
      : TestModel(read_model(json), dtype, seed, std) {}
  TestModel(const std::string& json, uint64_t seed, double std) : TestModel(json, DType::f64, seed, std) {}
  explicit TestModel(ModelConfig model_config, DType dtype = DType::f64, uint64_t seed = 1, double std = 0)
      : config(std::move(model_config)), arena(DeviceKind::cpu) {
    arena.set_poison(true);
    model = std::make_unique<Model>(config);
    model->params().allocate(arena, dtype, true);
    model->params().initialize(stream, seed);
    if (std > 0) {
      for (const auto& p : model->params().all()) {
        if (p->trained()) {
          std::vector<double> values(static_cast<size_t>(p->value.numel()));
          Rng rng(seed, p->name(), 7);
          const double scale = p->spec.shape.rank >= 2 ? std : 0.1;
          const std::vector<double> old = to_host(stream, p->value).values;
          for (size_t i = 0; i < values.size(); ++i) {
            values[i] = p->spec.shape.rank >= 2 ? scale * rng.normal() : old[i] + scale * rng.normal();
          }
          set(*p, values);
        }
      }
    }
  }

  void set(Param& p, const std::vector<double>& values) {
    dispatch_real(p.value.dtype, [&]<class S>(S) {
      const std::vector<S> typed(values.begin(), values.end());
      copy_to_device(stream, p.value, typed.data());
    });
  }
  std::vector<double> get(const Param& p) { return to_host(stream, p.value).values; }
  void fill(const std::string& name, double value) {
    Param& p = param(name);
    set(p, std::vector<double>(static_cast<size_t>(p.value.numel()), value));
  }
  /// Calls change(values) and writes them back.
  template <class F> void change(Param& p, F&& change) {
    std::vector<double> values = get(p);
    change(values);
    set(p, values);
  }
  Param& param(const std::string& name) {
    Param* p = model->params().find(name);
    INFO("parameter " << name);
    REQUIRE(p != nullptr);
    return *p;
  }
  /// Copies all parameters that both models have (values as double).
  void copy_from(TestModel& other) {
    for (const auto& p : model->params().all()) {
      Param* source = other.model->params().find(p->name());
      if (source != nullptr && p->spec.kind != ParamKind::buffer) { set(*p, other.get(*source)); }
    }
  }
  void load(const std::string& path) {
    SafetensorsFile file(path);
    CHECK(file.entries().size() == model->params().all().size());
    for (const auto& p : model->params().all()) {
      INFO(p->name());
      REQUIRE(file.find(p->name()) != nullptr);
      if (p->spec.kind == ParamKind::buffer) {
        const std::vector<int64_t> v = file.integers(p->name());
        const std::vector<int32_t> narrow(v.begin(), v.end());
        copy_to_device(stream, p->value, narrow.data());
      } else {
        set(*p, file.doubles(p->name()));
      }
    }
  }

  TraceOutput run(const TraceInput& input, const TraceOptions& options = with_grads()) {
    return trace(*model, stream, arena, input, options);
  }
  /// As `hebb trace` runs it: in training mode the rows are the step's first micro-batch.
  TraceOutput run_first(const TraceInput& input, const TraceOptions& options) {
    if (options.training) { model->begin_step(stream, options.step); }
    return run(input, options);
  }

  /// Logits [B T V] of a pass over `tokens` [B T], which continues `state`; `change` sets the pass up.
  std::vector<double> logits_of(const Rows& rows, const std::vector<int64_t>& tokens, ModelState* state = nullptr,
                                const std::function<void(Pass&)>& change = {}) {
    const std::vector<int32_t> narrow(tokens.begin(), tokens.end());
    const Buffer ids(arena, {rows.tokens()}, DType::i32, "tokens");
    copy_to_device(stream, ids, narrow.data());
    Tape tape(stream, arena, false);
    Pass pass{tape, rows};
    if (change) { change(pass); }
    return to_host(stream, tape.value(model->logits(pass, model->hidden(pass, ids, state)))).values;
  }
  /// What layers report of themselves while they read `input`.
  Statistics statistics(const TraceInput& input, bool training = false) {
    Statistics found;
    const Rows rows = input.doc_ids.empty() ? Rows::streams(stream, arena, input.rows, input.length)
                                            : Rows::documents(stream, arena, input.rows, input.length, input.doc_ids);
    logits_of(rows, input.inputs, nullptr, [&](Pass& pass) {
      pass.training = training;
      pass.statistics = &found;
    });
    return found;
  }

  /// Logits [B T V] of a pass that is cut into segments with carried state, from `state` on where there is one: its
  /// tokens came before. `change` sets the passes up. With documents every row has its own history: rows of one alone.
  std::vector<double> segments(const TraceInput& input, const std::vector<int64_t>& lengths,
                               ModelState* state = nullptr, const std::function<void(Pass&)>& change = {}) {
    const int64_t vocab = config.vocab_size, batch = input.rows, length = input.length;
    REQUIRE((input.doc_ids.empty() || (batch == 1 && state == nullptr)));
    std::vector<double> logits(static_cast<size_t>(batch * length * vocab));
    const auto fresh = model->make_state(arena, batch);
    if (state == nullptr) { state = fresh.get(); }
    int64_t begin = 0;
    for (const int64_t n : lengths) {
      const TraceInput piece = part(input, begin, n);
      int64_t offset = state->tokens;
      if (!piece.doc_ids.empty()) {
        const auto first = input.doc_ids.begin() + begin;
        offset = first - std::find(input.doc_ids.begin(), first, *first);
      }
      const Rows rows = piece.doc_ids.empty() ? Rows::streams(stream, arena, batch, n, offset)
                                              : Rows::documents(stream, arena, batch, n, piece.doc_ids, offset);
      const std::vector<double> found = logits_of(rows, piece.inputs, state, change);
      for (int64_t b = 0; b < batch; ++b) {
        std::copy_n(found.begin() + b * n * vocab, n * vocab, logits.begin() + (b * length + begin) * vocab);
      }
      begin += n;
    }
    REQUIRE(begin == length);
    return logits;
  }
  /// The same token by token.
  std::vector<double> steps(const TraceInput& input) {
    return segments(input, std::vector<int64_t>(static_cast<size_t>(input.length), 1));
  }

  ModelConfig config;
  Stream stream;
  Arena arena;
  std::unique_ptr<Model> model;
};

/// Fast weights by name.
using FastWeights = std::map<std::string, std::vector<double>>;

inline FastWeights fast_weights(TestModel& m) {
  FastWeights out;
  for (const auto& p : m.model->params().all()) {
    if (p->spec.kind == ParamKind::fast) { out[p->name()] = m.get(*p); }
  }
  return out;
}

inline void set_fast_weights(TestModel& m, const FastWeights& weights) {
  for (const auto& [name, values] : weights) { m.set(m.param(name), values); }
}

inline TraceInput random_input(int64_t rows, int64_t length, int64_t vocab = 29, uint64_t seed = 5) {
  TraceInput input;
  input.rows = rows;
  input.length = length;
  Rng rng(seed, "test input");
  for (int64_t i = 0; i < rows * length; ++i) {
    input.inputs.push_back(rng.below(static_cast<uint32_t>(vocab)));
    input.targets.push_back(rng.below(static_cast<uint32_t>(vocab)));
  }
  return input;
}

/// Document ids for one row from the documents' lengths.
inline std::vector<int64_t> documents(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> ids;
  for (size_t d = 0; d < lengths.size(); ++d) {
    ids.insert(ids.end(), static_cast<size_t>(lengths[d]), static_cast<int64_t>(d));
  }
  return ids;
}

/// Packs the rows' documents; lengths by row.
inline void set_documents(TraceInput& input, const std::vector<std::vector<int64_t>>& rows) {
  input.doc_ids.clear();
  for (const std::vector<int64_t>& lengths : rows) {
    const std::vector<int64_t> ids = documents(lengths);
    input.doc_ids.insert(input.doc_ids.end(), ids.begin(), ids.end());
  }
}

inline void check_same_outputs(const TraceOutput& a, const TraceOutput& b, double tolerance) {
  check_close("logits", a.logits.values, b.logits.values, tolerance);
  REQUIRE(a.grads.size() == b.grads.size());
  for (const auto& [name, gradient] : a.grads) {
    check_close(name, gradient.values, b.grads.at(name).values, tolerance);
  }
}

/// Elements of the parameters of a model whose names begin with `prefix`, without fast weights and buffers.
inline int64_t count_trained(const std::string& json, const std::string& prefix = "") {
  const ModelConfig config = read_model(json);
  const Model model(config);
  int64_t count = 0;
  for (const auto& p : model.params().all()) {
    count += p->trained() && p->name().rfind(prefix, 0) == 0 ? p->spec.shape.numel() : 0;
  }
  return count;
}

/// The error with which a `model` object is refused; empty if it is not.
inline std::string refusal(const std::string& json) {
  try {
    count_trained(json);
  } catch (const ConfigError& error) { return error.what(); }
  return "";
}

/// What a golden case asks of a trace: gradients, and mode, seed and step where its trace.json names them.
inline TraceOptions golden_options(const std::string& folder) {
  TraceOptions options = with_grads();
  const std::string path = folder + "/trace.json";
  if (!fs::exists(path)) { return options; }
  const Json settings = parse_json_file(path);
  for (const auto& [key, value] : settings.members()) {
    INFO(path << ": " << key);
    REQUIRE((key == "mode" || key == "seed" || key == "step"));
    if (key == "mode") { options.training = value.as_string() == "train"; }
    if (key == "seed") { options.seed = value.as_uint(); }
    if (key == "step") { options.step = value.as_int(); }
  }
  return options;
}

}  // namespace hebb::testing
