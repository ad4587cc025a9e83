#include "layers/heads_config.h"

#include <fmt/core.h>

namespace hebb {

void HeadsConfig::fields(Fields& f) {
  f.field("num_heads", num_heads).required().min(1).help("Query heads H.").scales(scaling::heads);
  f.field("num_kv_heads", num_kv_heads)
      .min(1)
      .help("Heads of keys and values K; divides num_heads, its default.")
      .scales(scaling::heads);
  f.require(num_heads < 1 || num_heads % kv_heads() == 0, "num_kv_heads",
            fmt::format("a divisor of num_heads ({:d})", num_heads));
  f.field("head_dim", head_dim).required().min(1).help("Channels D of a query or key.").scales(scaling::head_channels);
  f.field("value_head_dim", value_head_dim)
      .min(1)
      .help("Channels of a value; head_dim by default.")
      .scales(scaling::head_channels);
}

}  // namespace hebb
