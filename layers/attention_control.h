#pragma once
#include <cstdint>

namespace hebb {

struct YarnConfig;  // layers/rope_config.h

/// What a pass changes about attention.
struct AttentionControl {
  int64_t random_window = 0;         // > 0: in training, attention layers without a window use this one [tokens]
  const YarnConfig* yarn = nullptr;  // replaces that of every rope object
};

}  // namespace hebb
