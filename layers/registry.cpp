// The layer types. layers/NAME.cpp defines make_NAME_config (ffn.cpp: of swiglu and relu2).
#include "layers/layer.h"

namespace hebb {

using MakeConfig = std::unique_ptr<LayerConfig>();
MakeConfig make_attention_config, make_fwmlp_config, make_fwpkm_config, make_gdn_config, make_ham_config,
    make_kvm_config, make_lact_config, make_mamba2_config, make_mesanet_config, make_ovq_config, make_pkm_config,
    make_relu2_config, make_sdm_config, make_swiglu_config, make_vq_config;

const std::vector<LayerType>& layer_types() {
  static const std::vector<LayerType> types = {
      {"attention", Role::mixer, make_attention_config,
       R"("num_heads": 4, "num_kv_heads": 2, "head_dim": 32, "window": 17, "qk_norm": "rms", "gate": "head",
        "rope": {"theta": 100.0, "dims": 16}, "token_shift": true)",
       R"("num_heads": 4, "head_dim": 64, "rope": {"theta": 10000.0})"},
      {"swiglu", Role::ffn, make_swiglu_config, R"("intermediate_size": 37)", ""},
      {"relu2", Role::ffn, make_relu2_config, R"("intermediate_size": 37, "token_shift": true)",
       R"("intermediate_size": 1152)"},
      {"pkm", Role::ffn, make_pkm_config,
       R"("num_subkeys": 7, "key_dim": 12, "value_dim": 20, "num_heads": 2, "top_k": 3)",
       R"("num_subkeys": 64, "key_dim": 256, "value_dim": 256)"},
      {"gdn", Role::mixer, make_gdn_config,
       R"("num_heads": 2, "num_value_heads": 4, "key_head_dim": 16, "value_head_dim": 24, "conv_size": 4, "chunk_size": 16)",
       ""},
      {"fwpkm", Role::memory, make_fwpkm_config,
       R"("num_subkeys": 90, "key_dim": 12, "value_dim": 20, "num_heads": 2, "top_k": 3, "chunk_size": 8)",
       R"("num_subkeys": 64, "key_dim": 256, "value_dim": 256)"},
      {"fwmlp", Role::memory, make_fwmlp_config, R"("key_dim": 12, "value_dim": 20, "fast_dim": 18, "chunk_size": 8)",
       R"("key_dim": 256, "value_dim": 256, "fast_dim": 256)"},
      {"sdm", Role::mixer, make_sdm_config, R"("num_heads": 2, "slots_per_head": 36, "num_writes": 3, "num_reads": 4)",
       R"("slots_per_head": 1024, "num_writes": 16, "num_reads": 16)"},
      {"ovq", Role::mixer, make_ovq_config, R"("num_heads": 2, "head_dim": 16, "chunk_size": 8, "max_centroids": 19)",
       R"("num_heads": 4, "head_dim": 64, "max_centroids": 1024)"},
      {"ham", Role::mixer, make_ham_config,
       R"("rnn": {"num_heads": 2, "key_head_dim": 16, "value_head_dim": 24},
        "kv": {"num_heads": 2, "key_head_dim": 16, "value_head_dim": 24, "rope": {"theta": 100.0}})",
       R"("rnn": {"num_heads": 4, "key_head_dim": 64, "value_head_dim": 64},
        "kv": {"num_heads": 4, "key_head_dim": 64, "value_head_dim": 64, "rope": {"theta": 10000.0}})"},
      {"kvm", Role::mixer, make_kvm_config,
       R"("num_heads": 2, "head_dim": 16, "chunk_size": 8, "state": {"mode": "fixed", "rows": 11},
        "rope": {"theta": 100.0, "dims": 8})",
       R"("num_heads": 4, "head_dim": 64, "chunk_size": 256, "state": {"mode": "fixed", "rows": 256},
        "rope": {"theta": 10000.0, "dims": 32})"},
      {"vq", Role::mixer, make_vq_config, R"("num_heads": 2, "head_dim": 16, "codebook_size": 11)",
       R"("num_heads": 4, "head_dim": 64, "codebook_size": 1024)"},
      {"mesanet", Role::mixer, make_mesanet_config, R"("num_heads": 2, "key_head_dim": 16, "cg_steps": 8)",
       R"("num_heads": 4, "key_head_dim": 64)"},
      {"mamba2", Role::mixer, make_mamba2_config, R"("num_heads": 4, "head_dim": 12, "state_dim": 16, "num_groups": 2)",
       R"("num_heads": 4, "head_dim": 64, "state_dim": 64, "num_groups": 4)"},
      {"lact", Role::mixer, make_lact_config,
       R"("num_heads": 2, "num_fast_heads": 2, "window": 9, "rank": 4, "chunk_size": 8)",
       R"("num_heads": 4, "window": 512, "chunk_size": 256)"},
  };
  return types;
}

const LayerType* find_layer_type(std::string_view name) {
  for (const LayerType& t : layer_types()) {
    if (t.name == name) { return &t; }
  }
  return nullptr;
}

}  // namespace hebb
