#include "layers/heads_config.h"

#include <fmt/core.h>

#include "layers/size_field.h"

namespace hebb {

void HeadsConfig::fields(Fields& f) {
  required_size(f, "num_heads", num_heads, scaling::heads, "Query heads H.");
  size_field(f, "num_kv_heads", num_kv_heads, scaling::heads,
             "Heads of keys and values K; divides num_heads, its default.");
  f.require(num_heads < 1 || num_heads % kv_heads() == 0, "num_kv_heads",
            fmt::format("a divisor of num_heads ({:d})", num_heads));
  required_size(f, "head_dim", head_dim, scaling::head_channels, "Channels D of a query or key.");
  size_field(f, "value_head_dim", value_head_dim, scaling::head_channels, "Channels of a value; head_dim by default.");
}

void ProductKeyConfig::fields(Fields& f, int64_t& value_dim) {
  f.field("num_subkeys", num_subkeys)
      .min(2)
      .max(46340)
      .help("Sub-keys n per codebook; the table has n^2 slots.")
      .scales(scaling::subkeys);
  f.field("key_dim", key_dim).min(2).help("Width of a query, both halves.").scales(scaling::channels());
  size_field(f, "value_dim", value_dim, scaling::channels(), "Width of a value row.");
  f.field("num_heads", num_heads).min(1).help("Heads; they share the values, each has its own keys.");
  size_field(f, "top_k", top_k, scaling::slots_per_token, "Slots that a head reads per token.");
  f.require(key_dim % 2 == 0, "key_dim", "an even integer");
  f.require(top_k <= num_subkeys, "top_k", fmt::format("at most num_subkeys ({:d})", num_subkeys));
}

}  // namespace hebb
