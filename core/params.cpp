#include "core/params.h"

#include <algorithm>
#include <cmath>

#include "core/parallel.h"
#include "core/sign_of_life.h"

namespace hebb {

namespace init {

Init constant(double value) {
  return [value](Rng&, float* values, int64_t count) { std::fill(values, values + count, static_cast<float>(value)); };
}

Init normal(double std) {
  return [std](Rng& rng, float* values, int64_t count) {
    // A billion of them would take one thread half a minute.
    parallel_for(count, 1 << 14, [&](int64_t begin, int64_t end) {
      Rng part = rng;
      part.skip_normals(static_cast<uint64_t>(begin));
      for (int64_t i = begin; i < end; ++i) { values[i] = static_cast<float>(std * part.normal()); }
    });
    rng.skip_normals(static_cast<uint64_t>(count));
  };
}

Init uniform(double low, double high) {
  return [low, high](Rng& rng, float* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) { values[i] = static_cast<float>(low + (high - low) * rng.uniform()); }
  };
}

Init truncated_normal(double std) {
  return [std](Rng& rng, float* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      double x = rng.normal();
      while (std::abs(x) > 3.0) { x = rng.normal(); }
      values[i] = static_cast<float>(std * x);
    }
  };
}

}  // namespace init

void Param::reset_moments(Stream& stream) {
  if (m.defined()) {
    fill_zero(stream, m);
    fill_zero(stream, v);
  }
  updates = 0;
}

Param& ParamStore::declare(ParamSpec spec) {
  HEBB_ASSERT(find(spec.name) == nullptr);
  constexpr double kMost = 1LL << 48;  // byte counts and sums of all parameters stay far below 2^63
  double elements = 1;
  for (int i = 0; i < spec.shape.rank; ++i) {
    elements = spec.shape[i] < 0 ? 2 * kMost : elements * static_cast<double>(spec.shape[i]);
  }
  if (elements > kMost) { throw ConfigError(spec.name, "the shape " + spec.shape.str(), "at most 2^48 elements"); }
  params_.push_back(std::make_unique<Param>());
  params_.back()->spec = std::move(spec);
  by_name_.emplace(params_.back()->name(), params_.back().get());
  return *params_.back();
}

Param* ParamStore::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

const Tensor& ParamStore::declare_scratch(std::string name, Shape shape, std::optional<DType> dtype, Combine combine) {
  HEBB_ASSERT(combine == Combine::none || dtype == DType::i64 || dtype == DType::i32);
  return scratch_.emplace_back(Scratch{std::move(name), dtype, Tensor{nullptr, DType::f32, shape}, combine}).tensor;
}

std::vector<ParamStore::Combined> ParamStore::combined() const {
  std::vector<Combined> found;
  for (const Scratch& s : scratch_) {
    if (s.combine != Combine::none) { found.push_back({s.tensor, s.combine}); }
  }
  return found;
}

void ParamStore::allocate(Arena& arena, DType dtype, bool training, Own own) {
  dtype_ = dtype;
  // Every tensor starts on a 64-byte boundary of its block.
  const auto padded = [](int64_t n) { return (n + 15) / 16 * 16; };
  const auto moments = [&](const Param& p) { return (p.trained() && own.moments) || p.spec.kind == ParamKind::state; };
  const auto has_copy = [&](const Param& p) { return dtype == DType::bf16 && p.is_matrix(); };
  const auto has_value = [&](const Param& p) { return own.masters || !has_copy(p); };
  int64_t values = 0, trained = 0, with_moments = 0, copied = 0;
  for (const auto& p : params_) {
    if (p->spec.kind == ParamKind::buffer) {
      blocks_.emplace_back(arena, p->spec.shape, DType::i32, p->name());
      p->value = blocks_.back();
      continue;
    }
    values += has_value(*p) ? padded(p->spec.shape.numel()) : 0;
    copied += has_copy(*p) ? padded(p->spec.shape.numel()) : 0;
    trained += p->trained() && own.gradients ? padded(p->spec.shape.numel()) : 0;
    with_moments += moments(*p) ? padded(p->spec.shape.numel()) : 0;
  }
  const auto block = [&](int64_t size, const char* name) {
    blocks_.emplace_back(arena, Shape{size}, sum_dtype(dtype), name);
    return blocks_.back().tensor();
  };
  const Tensor value = block(values, "parameters");
  Tensor grad, m, v;
  if (training) {
    if (own.gradients) { grads_ = grad = block(trained, "gradients"); }
    m = block(with_moments, "first moments");
    v = block(with_moments, "second moments");
  }
  Tensor copy;
  if (copied > 0) {
    blocks_.emplace_back(arena, Shape{copied}, DType::bf16, "rounded matrices");
    copy = blocks_.back();
  }
  for (Scratch& s : scratch_) {
    blocks_.emplace_back(arena, s.tensor.shape, s.dtype.value_or(sum_dtype(dtype)), s.name);
    s.tensor = blocks_.back();
  }
  int64_t value_at = 0, trained_at = 0, moments_at = 0, copy_at = 0;
  for (const auto& p : params_) {
    if (p->spec.kind == ParamKind::buffer) { continue; }
    p->value = {nullptr, value.dtype, p->spec.shape};
    if (has_value(*p)) {
      p->value = value.slice(value_at, p->spec.shape);
      value_at += padded(p->spec.shape.numel());
    }
    if (has_copy(*p)) {
      p->copy = copy.slice(copy_at, p->spec.shape);
      copy_at += padded(p->spec.shape.numel());
    }
    if (training && p->trained() && own.gradients) {
      p->grad = grad.slice(trained_at, p->spec.shape);
      trained_at += padded(p->spec.shape.numel());
    }
    if (training && moments(*p)) {
      p->m = m.slice(moments_at, p->spec.shape);
      p->v = v.slice(moments_at, p->spec.shape);
      moments_at += padded(p->spec.shape.numel());
    }
  }
}

void ParamStore::initialize(Stream& stream, uint64_t seed) {
  if (stream.counting()) { return; }
  std::vector<float> drawn;
  std::vector<double> wide;
  for (const auto& p : params_) {
    sign_of_life();
    const int64_t n = p->spec.shape.numel();
    drawn.assign(static_cast<size_t>(n), 0.0f);
    Rng rng(seed, p->name());
    p->spec.init(rng, drawn.data(), n);
    if (p->value.dtype == DType::f64) {
      wide.assign(drawn.begin(), drawn.end());
      copy_to_device(stream, p->value, wide.data());
    } else if (p->value.dtype == DType::i32) {
      std::vector<int32_t> whole(drawn.begin(), drawn.end());
      copy_to_device(stream, p->value, whole.data());
    } else {
      copy_to_device(stream, p->value, drawn.data());
    }
    p->reset_moments(stream);
  }
  refresh_copies(stream);
}

void ParamStore::refresh_copies(Stream& stream) {
  for (const auto& p : params_) {
    if (p->copy.defined()) { convert(stream, p->copy, p->value); }
  }
}

void ParamStore::zero_grads(Stream& stream) {
  if (grads_.defined()) { fill_zero(stream, grads_); }
  for (const auto& p : params_) { p->reached = false; }
}

int64_t ParamStore::count(ParamKind kind) const {
  int64_t n = 0;
  for (const auto& p : params_) { n += p->spec.kind == kind ? p->spec.shape.numel() : 0; }
  return n;
}

}  // namespace hebb
