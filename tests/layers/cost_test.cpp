// FLOPs of layers by the formulas of their pages. attention, gdn, mamba2, mesanet, kvm, lact and vq have theirs in
// their own tests.
#include "tests/layers/fast_weights.h"

namespace {

double flops_of(const Layer& layer, int64_t length = 100) { return layer.flops_per_token(length); }

double mixer_flops(const std::string& mixer, int64_t d, int64_t length = 100) {
  const TestModel m(mixer_model_json(mixer, d, 1));
  return flops_of(*m.model->blocks()[0].mixer, length);
}

double memory_flops(const std::string& memory) {
  const TestModel m(memory_model(memory));
  return flops_of(*m.model->blocks()[0].memory);
}

double ffn_flops(const std::string& ffn) {
  const TestModel m(mixer_model_json(R"("type": "attention", "num_heads": 1, "head_dim": 4)", 10, 1, ffn));
  return flops_of(*m.model->blocks()[0].ffn);
}

}  // namespace

TEST_CASE("ham counts the FLOPs of its page", "[ham][fast]") {
  const double d = 12, hr = 2, hk = 4, kr = 4, vr = 6, qk = hr * kr, v = hr * vr, taps = 4, c = 16, t = 100,
               share = 0.25;
  const std::string layer =
      R"("type": "ham", "chunk_size": 16, "rnn": {"num_heads": 2, "key_head_dim": 4, "value_head_dim": 6},
      "kv": {"num_heads": 4, "key_head_dim": 2, "value_head_dim": 3}, "threshold": {"target": 0.25})";
  CHECK(mixer_flops(layer, 12) == Approx(2 * d * (2 * qk + 3 * v + 3 * hr + hk) + 2 * (2 * taps + 3) * (2 * qk + v) +
                                         hr * (1 + 3.5 * c + c * c / 2) + 6 * c * qk + 5 * c * v + 6 * qk * vr + 6 * v +
                                         (qk + v) * (t + 1) * share)
                                      .epsilon(1e-12));
}

TEST_CASE("ovq counts the FLOPs of its page", "[ovq][fast]") {
  const double d = 12, h = 4, k = 2, key = 6, value = 3, l = 128, taps = 3;
  const double read = 901;  // at T 4,096, rounded
  const double found =
      mixer_flops(R"("type": "ovq", "num_heads": 4, "num_kv_heads": 2, "head_dim": 6, "value_head_dim": 3,
      "max_centroids": 2048, "chunk_size": 128, "qk_conv": 3)",
                  12, 4096);
  const double rest = 2 * d * (h * key + k * key + k * value + h * value) + 2 * h * (key + value) * (l + 1) / 2 +
                      3 * k * (key + value) + 2 * taps * (h + k) * key;
  const double each = 2 * h * (key + value) + 2 * k * key;
  CHECK(std::abs(found - rest - each * read) < each / 2);
}

TEST_CASE("sdm counts the FLOPs of its page", "[fast]") {
  const double d = 12, h = 2, n = 5, dim = 6, w = 3, r = 4;
  const std::string layer = R"("type": "sdm", "num_heads": 2, "slots_per_head": 25, "num_writes": 3, "num_reads": 4)";
  const double same = 2 * d * (4 * h * n + 2 * h * dim + 2 * h) + h * dim * (4 * w + 2 * r);
  CHECK(mixer_flops(layer, 12) == same + 2 * d * h * dim);
  CHECK(mixer_flops(layer + R"(, "out_gate": "none")", 12) == same);
}

TEST_CASE("memories count the FLOPs of their pages", "[fast]") {
  const double d = 10, h = 2, n = 5, dk = 4, dv = 7, k = 3, gate = 3, hidden = 6;
  const std::string table = R"("num_subkeys": 5, "key_dim": 4, "value_dim": 7, "num_heads": 2, "top_k": 3)";
  const std::string memory = R"("type": "fwpkm", "gate_width": 3, )" + table;
  const double branch = 2 * d * (h * dk + 2 * dv + gate) + 2 * h * n * dk + 6 * h * k * dv;
  CHECK(memory_flops(memory) == branch + 12 * h * k * dk);
  CHECK(memory_flops(memory + R"(, "key_update": "none")") == branch);
  CHECK(memory_flops(R"("type": "fwpkm", "gate": false, "weight_by_gate": false, )" + table) ==
        branch + 12 * h * k * dk - 2 * d * gate);
  CHECK(memory_flops(R"("type": "fwmlp", "gate_width": 3, "key_dim": 4, "value_dim": 7, "fast_dim": 6)") ==
        2 * d * (dk + 2 * dv + gate) + 6 * hidden * (2 * dk + dv));
  CHECK(ffn_flops(R"("type": "pkm", )" + table) == 2 * d * h * dk + 2 * h * n * dk + 2 * h * k * dv + 4 * d * dv);
  CHECK(ffn_flops(R"("type": "pkm", "glu": false, )" + table) ==
        2 * d * h * dk + 2 * h * n * dk + 2 * h * k * dv + 2 * d * dv);
  CHECK(ffn_flops(R"("type": "swiglu", "intermediate_size": 7)") == 6 * d * 7);
  CHECK(ffn_flops(R"("type": "relu2", "intermediate_size": 7)") == 4 * d * 7);
}
