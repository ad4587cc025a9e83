#include "kernels/cast.h"

#include <bit>

#include "core/parallel.h"

namespace hebb::cpu {
namespace {

float to_float(float x) { return x; }
float to_float(bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

void assign(float& to, float x) { to = x; }
void assign(bf16& to, float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
  to.bits = static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FFFu : rounded);
}

template <class To, class From>
void cast(const Cast& args) {
  To* to = args.to.as<To>();
  const From* from = args.from.as<From>();
  parallel_for(args.to.numel(), 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      assign(to[i], to_float(from[i]));
    }
  });
}

}  // namespace

void run(Stream&, const Cast& args) {
  HEBB_ASSERT(args.to.numel() == args.from.numel());
  if (args.to.dtype == DType::bf16) {
    args.from.dtype == DType::bf16 ? cast<bf16, bf16>(args) : cast<bf16, float>(args);
  } else {
    args.from.dtype == DType::bf16 ? cast<float, bf16>(args) : cast<float, float>(args);
  }
}

}  // namespace hebb::cpu
