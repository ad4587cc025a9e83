#include "core/fp32_operands.h"

#include <algorithm>

#include "core/bfloat.h"
#include "core/parallel.h"

namespace hebb {
namespace {

constexpr int64_t kGrain = 1 << 14;

const char* begin_of(const Tensor& t) { return static_cast<const char*>(t.data); }
const char* end_of(const Tensor& t) { return begin_of(t) + t.bytes(); }

}  // namespace

void Fp32Operands::add(Tensor& tensor) {
  if (tensor.dtype == DType::bf16) { tensors_.push_back(&tensor); }
}

void Fp32Operands::widen(bool counting) {
  if (!counting) {
    // One copy of each stretch of memory that tensors cover together.
    std::vector<Tensor> parts;
    for (const Tensor* t : tensors_) {
      if (t->bytes() > 0 && t->defined()) { parts.push_back(*t); }
    }
    std::sort(parts.begin(), parts.end(), [](const Tensor& a, const Tensor& b) { return a.data < b.data; });
    for (const Tensor& part : parts) {
      if (copies_.empty() || begin_of(part) >= end_of(copies_.back().narrow)) {
        copies_.push_back({.narrow = {part.data, DType::bf16, {part.numel()}}, .wide = {}, .memory = nullptr});
      } else {
        Tensor& whole = copies_.back().narrow;
        const int64_t bytes = std::max(end_of(part), end_of(whole)) - begin_of(whole);
        whole.shape = {bytes / dtype_bytes(DType::bf16)};
      }
    }
    for (Copy& copy : copies_) {
      const int64_t n = copy.narrow.numel();
      copy.memory = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(n));
      copy.wide = {copy.memory.get(), DType::f32, {n}};
      const bf16* from = copy.narrow.as<bf16>();
      float* to = copy.wide.as<float>();
      parallel_for(n, kGrain,
                   [&](int64_t begin, int64_t end) { std::transform(from + begin, from + end, to + begin, widened); });
    }
  }
  for (Tensor* t : tensors_) {
    t->dtype = DType::f32;
    for (const Copy& copy : copies_) {
      if (t->bytes() == 0 || begin_of(*t) < begin_of(copy.narrow) || begin_of(*t) >= end_of(copy.narrow)) { continue; }
      t->data = copy.wide.as<float>() + (begin_of(*t) - begin_of(copy.narrow)) / dtype_bytes(DType::bf16);
      break;
    }
  }
}

void Fp32Operands::narrow() const {
  for (const Copy& copy : copies_) {
    const float* from = copy.wide.as<float>();
    bf16* to = copy.narrow.as<bf16>();
    parallel_for(copy.narrow.numel(), kGrain, [&](int64_t begin, int64_t end) {
      std::transform(from + begin, from + end, to + begin, nearest_bf16);
    });
  }
}

}  // namespace hebb
