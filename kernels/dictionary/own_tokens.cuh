#pragma once
// What a chunk sees of the tokens of this pass: the work of the attention kernels, for all chunks at once, before
// dictionaries are read.
#include "kernels/attention/scratch.h"
#include "kernels/attention/visible_keys.h"
#include "kernels/dictionary/slot_attention.cuh"

namespace hebb::HEBB_DEVICE::slots {

/// Intervals [B, T] of the tokens that queries see: those of their chunk and of the `chunks` - 1 before it.
struct OwnTokens {
  Tensor lo, hi;

  template <class Args>
  OwnTokens(Stream& stream, const Args& a, int64_t chunks, int32_t* lo_memory, int32_t* hi_memory) {
    const Shape tokens{a.q.size(0), a.q.size(1)};
    lo = {lo_memory, DType::i32, tokens};
    hi = {hi_memory, DType::i32, tokens};
    HEBB_DEVICE::run(stream, VisibleKeys{.lo = lo,
                                         .hi = hi,
                                         .doc_start = a.doc_start,
                                         .range = KeyRange{.window = 0, .block = a.rule.chunk, .blocks = chunks},
                                         .offset = 0});
  }
};

/// Attention to them by queries q: to a.o, and its log-sum-exp [B, T, H] to own_lse and, where it is wanted, a.lse.
template <class Args>
void attend_own(Stream& stream, const Args& a, const OwnTokens& own, const Tensor& q, double scale, float* own_lse,
                bool on_tensor_cores) {
  const Tensor lse{own_lse, DType::f32, {q.size(0), q.size(1), q.size(2)}};
  HEBB_DEVICE::run(
      stream,
      AttentionForward{
          .o = a.o, .lse = lse, .q = q, .k = a.k, .v = a.v, .lo = own.lo, .hi = own.hi, .bias = {}, .scale = scale},
      AttentionForwardScratch{.partial = {}, .on_tensor_cores = on_tensor_cores});
  if (a.lse.defined()) {
    each_element("own_lse", stream, 1, lse.numel(), CopyFloats{a.lse.template as<float>(), own_lse});
  }
}

/// Its gradients at d_q, a.d_k and a.d_v, with a.o and a.lse of everything read.
template <class Args>
void attend_own_backward(Stream& stream, const Args& a, const OwnTokens& own, const Tensor& d_q, const Tensor& q,
                         double scale, bool accumulate_q, const AttentionBackwardScratch& scratch) {
  HEBB_DEVICE::run(stream,
                   AttentionBackward{.d_q = d_q,
                                     .d_k = a.d_k,
                                     .d_v = a.d_v,
                                     .d_bias = {},
                                     .d_o = a.d_o,
                                     .q = q,
                                     .k = a.k,
                                     .v = a.v,
                                     .o = a.o,
                                     .lse = a.lse,
                                     .lo = own.lo,
                                     .hi = own.hi,
                                     .bias = {},
                                     .scale = scale,
                                     .accumulate_q = accumulate_q,
                                     .accumulate_k = a.accumulate_k,
                                     .accumulate_v = a.accumulate_v,
                                     .accumulate_bias = false,
                                     .has_other_keys = true},
                   scratch);
}

}  // namespace hebb::HEBB_DEVICE::slots
