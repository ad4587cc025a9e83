#pragma once
#include <algorithm>
#include <optional>

#include "core/fields.h"

namespace hebb {

/// H query heads and K heads of keys and values; D channels of a query or key, Dv of a value. Query head h reads kv
/// head h K / H.
struct HeadSizes {
  int64_t heads, kv_heads, key_dim, value_dim;
};

/// Their fields in `attention`, `kvm`, `ovq` and `vq`.
struct HeadsConfig {
  int64_t num_heads = 0, head_dim = 0;
  std::optional<int64_t> num_kv_heads, value_head_dim;

  void fields(Fields& f);
  int64_t kv_heads() const { return num_kv_heads.value_or(num_heads); }
  int64_t value_dim() const { return value_head_dim.value_or(head_dim); }
  HeadSizes sizes() const { return {num_heads, kv_heads(), head_dim, value_dim()}; }
};

/// The fields of a table of n^2 slots with product keys in `pkm` and `fwpkm`.
struct ProductKeyConfig {
  int64_t num_subkeys = 512, key_dim = 512, num_heads = 4, top_k = 32;

  /// value_dim is among them.
  void fields(Fields& f, int64_t& value_dim);
  int64_t width() const { return num_heads * key_dim; }
  /// Slots that a token does not read.
  int64_t idle_slots() const { return std::max<int64_t>(0, num_subkeys * num_subkeys - num_heads * top_k); }
};

}  // namespace hebb
