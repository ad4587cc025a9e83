#include "inspect/convert/hf_config.h"

namespace hebb {

void HfConfig::finish() const {
  static const std::set<std::string, std::less<>> kSayNothing{
      "_name_or_path", "architectures", "attention_dropout", "attn_implementation", "bos_token_id", "dtype",
      "eos_token_id", "is_llama_config", "max_position_embeddings", "pad_token_id", "torch_dtype",
      "transformers.js_config", "transformers_version", "use_cache",
      // of the parallel form of training, and of windows that are off
      "pretraining_tp", "max_window_layers",
      // how flash-linear-attention computes, and what its training adds to the loss
      "attn_mode", "fuse_cross_entropy", "fuse_linear_cross_entropy", "fuse_norm", "fuse_swiglu", "use_l2warp"};
  for (const auto& [key, value] : json_.members()) {
    if (asked_.count(key) == 0 && kSayNothing.count(key) == 0) {
      fail(key, &value, "no such key: hebb does not know what it does to the model");
    }
  }
}

}  // namespace hebb
