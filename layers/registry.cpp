#include "layers/attention.h"
#include "layers/ffn.h"
#include "layers/fwmlp.h"
#include "layers/fwpkm.h"
#include "layers/gdn.h"
#include "layers/ham.h"
#include "layers/kvm.h"
#include "layers/lact.h"
#include "layers/layer.h"
#include "layers/mamba2.h"
#include "layers/mesanet.h"
#include "layers/ovq.h"
#include "layers/pkm.h"
#include "layers/sdm.h"
#include "layers/vq.h"

namespace hebb {

const std::vector<LayerType>& layer_types() {
  static const std::vector<LayerType> types = {
      {"attention", Role::mixer, make_attention_config},
      {"swiglu", Role::ffn, make_swiglu_config},
      {"relu2", Role::ffn, make_relu2_config},
      {"pkm", Role::ffn, make_pkm_config},
      {"gdn", Role::mixer, make_gdn_config},
      {"fwpkm", Role::memory, make_fwpkm_config},
      {"fwmlp", Role::memory, make_fwmlp_config},
      {"sdm", Role::mixer, make_sdm_config},
      {"ovq", Role::mixer, make_ovq_config},
      {"ham", Role::mixer, make_ham_config},
      {"kvm", Role::mixer, make_kvm_config},
      {"vq", Role::mixer, make_vq_config},
      {"mesanet", Role::mixer, make_mesanet_config},
      {"mamba2", Role::mixer, make_mamba2_config},
      {"lact", Role::mixer, make_lact_config},
  };
  return types;
}

const LayerType* find_layer_type(std::string_view name) {
  for (const LayerType& t : layer_types()) {
    if (t.name == name) {
      return &t;
    }
  }
  return nullptr;
}

}  // namespace hebb
