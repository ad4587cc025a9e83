#pragma once
#include "layers/layer.h"

namespace hebb {

/// Sizes of a product-key table of n n slots (docs/layers/pkm.md).
struct ProductKeyMemory {
  int64_t heads, subkeys, half_dim, top_k;  // H, n, D, k
};

/// r [N, dv] = per head softmax-weighted sum of the k best rows of values [n n, dv], heads added.
/// q [N, H 2 D], keys [H, 2, n, D]. `name`.slots are recorded and forced (docs/verbs/trace.md, Decisions); their use is
/// among the pass's statistics of `name` (docs/layers/pkm.md, Statistics). Chosen slots are constants; everything else
/// is differentiated (docs/layers/pkm.md, Selection and Gradients).
Var product_key_read(Pass& pass, Var q, Var keys, Var values, const ProductKeyMemory& memory, const std::string& name);

}  // namespace hebb
