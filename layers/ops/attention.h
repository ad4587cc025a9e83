#pragma once
#include "kernels/attention/visible_keys.h"
#include "layers/layer.h"

namespace hebb {

/// Sizes of an attention call; see kernels/attention/attention.h.
struct AttentionShape {
  int64_t batch, length;  // queries: B, T
  int64_t spaces, keys;   // keys: Bk (B, or 1 for one packed space), S
  int64_t heads, kv_heads, head_dim, value_head_dim;
};

/// What every token sees of its own row, token t being key t + offset. Made once a pass for every
/// range and offset (pass.shared).
KeyIntervals visible_keys(Pass& pass, const KeyRange& range, int64_t offset = 0);

/// Softmax attention of q [B T, H D] to k [Bk S, K D], v [Bk S, K Dv] (any views) over one interval of
/// keys per query; bias [Bk S, K] or no Var. Returns [B T, H Dv]. Saves lse [B, T, H] only.
/// FLOPs: 2 H (D + Dv) per visible pair, backward 2.5 times that. Source: docs/layers/attention.md, Forward.
Var attention(Tape& tape, Var q, Var k, Var v, const AttentionShape& shape, const KeyIntervals& visible, double scale,
              Var bias = {});

}  // namespace hebb
