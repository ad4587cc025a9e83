"""Models of transformers and flash-linear-attention beside hebb's: python3 foreign_models.py golden HEBB FOLDER

Writes one folder for each case below, with logits that the library's own classes compute in float64. import-NAME: a random model that transformers or fla
made, its config.json as save_pretrained writes it. export-NAME: a random model of hebb, and what the library computes from what `hebb convert` makes of it;
exported.json holds the configuration and the digest of the weights that were read. Every export is opened with from_pretrained too.
transformers computes norms, softmax and frequencies in float32; here that name stands for float64 while a model is made and run.
"""
import json
import os
import subprocess
import sys
import tempfile
import zlib

import torch
import torch.nn.functional as F
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

import compare
import safetensors_file

sys.modules["fla"] = None  # transformers takes its own PyTorch forms of the delta rule
import transformers.models.qwen3_5.modeling_qwen3_5  # noqa: E402
import transformers.models.qwen3_next.modeling_qwen3_next  # noqa: E402

del sys.modules["fla"]

T = 21
SIZES = {"vocab_size": 13, "hidden_size": 8, "intermediate_size": 10, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
         "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 4.0, "truncate": False}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 4, "linear_value_head_dim": 6, "linear_conv_kernel_dim": 3,
          "layer_types": ["linear_attention", "full_attention", "linear_attention"], "num_hidden_layers": 3, "head_dim": 8}
MIXED = {"layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True, "sliding_window": 5}

IMPORTS = {
    "llama": {"model_type": "llama", **SIZES, "head_dim": 6, "rope_parameters": LLAMA3, "max_position_embeddings": 512},
    "llama-yarn": {"model_type": "llama", **SIZES, "rope_parameters": YARN, "max_position_embeddings": 128, "tie_word_embeddings": True},
    "mistral": {"model_type": "mistral", **SIZES, "sliding_window": 5, "rope_parameters": {"rope_type": "default", "rope_theta": 300.0}},
    "qwen2": {"model_type": "qwen2", **SIZES, **MIXED, "rope_parameters": {"rope_type": "default", "rope_theta": 300.0}},
    "qwen3": {"model_type": "qwen3", **SIZES, **MIXED, "head_dim": 6, "rope_parameters": {"rope_type": "default", "rope_theta": 300.0}},
    "smollm3": {"model_type": "smollm3", **SIZES, "num_hidden_layers": 3, "no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 6,
                "layer_types": ["sliding_attention", "full_attention", "full_attention"], "max_position_embeddings": 64,
                "rope_parameters": {"rope_type": "default", "rope_theta": 900.0}},
    "qwen3_5_text": {"model_type": "qwen3_5_text", **SIZES, **LINEAR,
                     "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}},
    "qwen3_next": {"model_type": "qwen3_next", **SIZES, **LINEAR, "num_experts": 0, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
    "gated_deltanet": {"model_type": "gated_deltanet", **{k: SIZES[k] for k in ("vocab_size", "hidden_size", "intermediate_size")}, "num_hidden_layers": 4,
                       "num_heads": 2, "num_v_heads": 4, "head_dim": 4, "expand_v": 1.5, "output_gate_activation": "sigmoid", "allow_neg_eigval": True,
                       "attn": [{"layers": [1], "num_heads": 2, "num_kv_heads": 1, "window_size": 5, "rope_theta": 100.0},
                                {"layers": [3], "num_heads": 4, "num_kv_heads": 2}], "pad_token_id": None},
    "gated_deltanet-plain": {"model_type": "gated_deltanet", **{k: SIZES[k] for k in ("vocab_size", "hidden_size", "intermediate_size")},
                             "num_hidden_layers": 2, "num_heads": 2, "head_dim": 4, "use_gate": False, "use_short_conv": False, "pad_token_id": None},
}

MLP = {"mlp": {"type": "swiglu", "intermediate_size": 10}}


def heads(**keys):
    return {"type": "attention", "num_heads": 2, "num_kv_heads": 1, "head_dim": 6, **keys}


def delta(**keys):
    return {"type": "gdn", "num_heads": 2, "num_value_heads": 4, "key_head_dim": 4, "value_head_dim": 6, **keys}


def model(layers, blocks, **keys):
    return {"vocab_size": 13, "hidden_size": 8, "num_layers": len(blocks), **keys, "layers": {**layers, **MLP},
            "pattern": [{"mixer": name, "ffn": "mlp"} for name in blocks]}


ROPE = {"theta": 300.0}
EXPORTS = {
    "llama": ("llama", model({"a": heads(rope={"theta": 500.0, "yarn": {"factor": 4.0, "original": 32, "beta_fast": 4.0, "truncate": False}})}, "aa",
                             norm="rms_unit_offset", residual_scale=0.7, embed_norm=True, norm_eps=1e-4)),
    "llama3": ("llama", model({"a": heads(rope={"theta": 5000.0, "llama3": {"factor": 8.0, "original": 64, "low_freq_factor": 1.0,
                                                                            "high_freq_factor": 4.0}})}, "aa", tie_embeddings=True)),
    "mistral": ("mistral", model({"a": heads(rope=ROPE, window=5)}, "aa", tie_embeddings=True, residual_scale=1.5)),
    "qwen3": ("qwen3", model({"a": heads(rope=ROPE, window=5, qk_norm="rms"), "b": heads(rope=ROPE, qk_norm="rms")}, "ab", norm="rms_unit_offset")),
    "qwen2": ("qwen2", model({"a": heads(rope=ROPE), "b": heads(rope=ROPE, window=5)}, "aab", embed_norm=True)),
    "smollm3": ("smollm3", model({"a": heads(rope=ROPE, window=5), "b": heads()}, "aba")),
    "qwen3_5_text": ("qwen3_5_text", model({"g": delta(), "h": delta(conv_size=0),
                                            "a": heads(head_dim=10, rope={"theta": 100.0, "dims": 6}, qk_norm="rms", gate="head"),
                                            "b": heads(head_dim=10, rope={"theta": 100.0, "dims": 6}, qk_norm="rms")}, "gahb", residual_scale=0.7)),
    "qwen3_5_text-nope": ("qwen3_5_text", model({"g": delta(conv_size=0), "a": heads(qk_norm="rms", gate="element")}, "ga", embed_norm=True,
                                                norm="rms_unit_offset")),
    "qwen3_next": ("qwen3_next", model({"g": delta(), "a": heads(rope=ROPE, qk_norm="rms", gate="element")}, "ga", tie_embeddings=True)),
    "gated_deltanet": ("gated_deltanet", model({"g": delta(output_gate="sigmoid", allow_neg_eigval=True),
                                                "a": heads(head_dim=4, rope={"theta": 100.0}, window=5),
                                                "b": heads(head_dim=4, rope={"theta": 100.0})}, "gab", residual_scale=0.7)),
}


class Wide:
    """float32 means float64 inside; new tensors are float64."""

    def __enter__(self):
        self.kept = torch.float, torch.float32, torch.Tensor.float, torch.get_default_dtype()
        torch.float = torch.float32 = torch.float64
        torch.Tensor.float = torch.Tensor.double
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *error):
        torch.float, torch.float32, torch.Tensor.float = self.kept[:3]
        torch.set_default_dtype(self.kept[3])


def use_formulas():
    """fla's Triton and flash-attention calls are replaced by what they compute."""
    import fla.layers.attn
    import fla.layers.gated_deltanet as gdn
    import fla.models.gated_deltanet.modeling_gated_deltanet as modeling
    import fla.modules.mlp

    class RMSNorm(torch.nn.Module):
        def __init__(self, hidden_size, eps=1e-5, activation=None, **_):
            super().__init__()
            self.weight, self.eps, self.activation = torch.nn.Parameter(torch.ones(hidden_size)), eps, activation

        def forward(self, x, gate=None, *_, **__):
            y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight
            return y if gate is None else y * (torch.sigmoid(gate) if self.activation == "sigmoid" else F.silu(gate))

    class ShortConvolution(torch.nn.Conv1d):
        backend, activation = "none", "silu"

        def __init__(self, hidden_size, kernel_size, bias=False, activation="silu", **_):
            super().__init__(hidden_size, hidden_size, kernel_size, groups=hidden_size, bias=bias, padding=kernel_size - 1)

        def forward(self, x, **_):
            return F.silu(super().forward(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)), None

    def delta_rule(q, k, v, g, beta, **kw):
        assert kw.get("use_qk_l2norm_in_kernel") and kw.get("initial_state") is None
        if kw.get("use_gate_in_kernel"):
            g = -kw["A_log"].exp() * F.softplus(g + kw["dt_bias"])
        if kw.get("use_beta_sigmoid_in_kernel"):
            beta = beta.sigmoid() * (2 if kw.get("allow_neg_eigval") else 1)
        q, k = (x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
        share = v.shape[2] // q.shape[2]
        q, k = q.repeat_interleave(share, 2) * q.shape[-1] ** -0.5, k.repeat_interleave(share, 2)
        state, out = torch.zeros(v.shape[0], v.shape[2], q.shape[-1], v.shape[-1]), []
        for t in range(q.shape[1]):
            state = state * g[:, t].exp()[..., None, None]
            error = v[:, t] - torch.einsum("bhk,bhkv->bhv", k[:, t], state)
            state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], error * beta[:, t, :, None])
            out.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
        return torch.stack(out, 1), None

    def flash(q, k, v, causal=True, window_size=(-1, -1), **_):
        share = q.shape[2] // k.shape[2]
        k, v = k.repeat_interleave(share, 2), v.repeat_interleave(share, 2)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
        i, j = torch.arange(q.shape[1])[:, None], torch.arange(k.shape[1])[None]
        hidden = (j > i) | ((i - j > window_size[0]) if window_size[0] >= 0 else torch.zeros_like(i - j, dtype=torch.bool))
        return torch.einsum("bhij,bjhd->bihd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)

    class Rotary(torch.nn.Module):
        def __init__(self, dim, base=10000.0, **_):
            super().__init__()
            self.frequency = 1 / base ** (torch.arange(0, dim, 2) / dim)

        def forward(self, q, k, **_):
            angle = torch.arange(q.shape[1])[:, None] * self.frequency
            cos, sin = angle.cos()[None, :, None], angle.sin()[None, :, None]

            def turn(x):
                a, b = x.chunk(2, -1)
                return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

            return turn(q), turn(k)

    gdn.RMSNorm = gdn.FusedRMSNormGated = modeling.RMSNorm = RMSNorm
    gdn.ShortConvolution = ShortConvolution
    gdn.GatedDeltaNet._use_fused_qkv_conv = lambda *_, **__: False
    gdn.chunk_gated_delta_rule = gdn.fused_recurrent_gated_delta_rule = delta_rule
    fla.modules.mlp.swiglu = lambda a, b: F.silu(a) * b
    fla.layers.attn.flash_attn_func = flash
    fla.layers.attn.RotaryEmbedding = Rotary


def make(config):
    """The library's own model in float64."""
    if config.model_type == "gated_deltanet":
        use_formulas()
        config.fuse_norm = config.fuse_swiglu = config.fuse_cross_entropy = False
    return AutoModelForCausalLM.from_config(config).double().eval()


def logits_of(module, tokens):
    with torch.no_grad():
        return module(input_ids=tokens, use_cache=False).logits


def tokens_of(name):
    torch.manual_seed(zlib.crc32(name.encode()))
    return torch.randint(13, (1, T))


def fill(module, zero_centred):
    """Random values of the size that training gives; those of float32."""
    for name, p in module.named_parameters():
        if "norm" in name and name.endswith("weight"):
            plain = not zero_centred or "linear_attn.norm" in name
            p.data = (1.0 if plain else 0.0) + 0.3 * torch.randn(p.shape)
        elif name.endswith("_proj.bias"):
            p.data = torch.zeros(p.shape)
        elif p.dim() > 1:
            p.data = torch.randn(p.shape) / p.shape[-1] ** 0.5
        else:
            p.data = 0.5 * torch.randn(p.shape)
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            p.data = (p.data * 1024).round() / 1024  # 1 + w is a number of float32
        p.data = p.data.to(torch.empty(0, dtype=torch.float64).dtype)


def write_expected(folder, tokens, logits):
    safetensors_file.write(folder + "/expected.safetensors", {"logits": logits[0].double()})
    safetensors_file.write(folder + "/rows.safetensors", {"inputs": tokens})


def import_case(name, keys, folder):
    os.makedirs(folder)
    tokens = tokens_of("import " + name)
    keys = dict(keys)
    if keys["model_type"] == "gated_deltanet":
        import fla.models  # noqa: F401  registers the class
    config = AutoConfig.for_model(keys.pop("model_type"), **keys)
    config._attn_implementation = "eager"
    config.save_pretrained(folder)
    with Wide():
        module = make(config)
        fill(module, config.model_type in ("qwen3_5_text", "qwen3_next"))
    narrow = dict(module.named_parameters())
    for p in narrow.values():
        p.data = p.data.to(torch.float32).to(torch.float64)
    with Wide():
        logits = logits_of(module, tokens)
    safetensors_file.write(folder + "/model.safetensors", {k: p.data.to(torch.float32) for k, p in narrow.items()})
    write_expected(folder, tokens, logits)


def digest(tensors):
    crc = 0
    for name, tensor in sorted(tensors.items()):
        crc = zlib.crc32(f"{name} {list(tensor.shape)}".encode(), crc)
        crc = zlib.crc32(tensor.contiguous().numpy().tobytes(), crc)
    return crc


def export_case(name, case, hebb, folder):
    wanted, spec = case
    os.makedirs(folder)
    tokens = tokens_of("export " + name)
    weights, _ = compare.draw({"model": spec}, "export " + name)
    weights = {key: tensor.double() for key, tensor in weights.items()}  # what is folded into them is rounded there
    safetensors_file.write(folder + "/model.safetensors", weights)
    with open(folder + "/config.json", "w") as f:
        json.dump({"model": spec}, f, indent=1)
    with tempfile.TemporaryDirectory() as out:
        subprocess.run([hebb, "convert", folder, out + "/hf", "--class", wanted], check=True, stdout=subprocess.DEVNULL)
        tensors = safetensors_file.read(out + "/hf/model.safetensors")
        if wanted == "gated_deltanet":
            import fla.models  # noqa: F401
        config = AutoConfig.from_pretrained(out + "/hf")
        config._attn_implementation = "eager"
        assert type(config).model_type == wanted
        if wanted != "gated_deltanet":
            opened, info = AutoModelForCausalLM.from_pretrained(out + "/hf", output_loading_info=True, dtype=torch.float32)
            assert not info["unexpected_keys"] and not info["missing_keys"] and not info["mismatched_keys"], info
            near = logits_of(opened.eval(), tokens)
        with Wide():
            module = make(config)
            missing, unexpected = module.load_state_dict({k: t.double() for k, t in tensors.items()}, strict=False)
            assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
            module.tie_weights()
            logits = logits_of(module, tokens)
        if wanted != "gated_deltanet":
            difference = float((near - logits).abs().max() / logits.abs().max())
            assert difference < 1e-4, difference
        with open(out + "/hf/config.json") as f:
            written = json.load(f)
        with open(folder + "/exported.json", "w") as f:
            json.dump({"class": wanted, "digest": digest(tensors), "config": written}, f, indent=1)
    write_expected(folder, tokens, logits)


def main():
    verb, hebb, folder = sys.argv[1:4]
    assert verb == "golden"
    only = sys.argv[4:]
    print("transformers", transformers.__version__)
    for name, keys in IMPORTS.items():
        if not only or "import-" + name in only:
            import_case(name, keys, f"{folder}/foreign-import-{name}")
            print("import", name, flush=True)
    for name, case in EXPORTS.items():
        if not only or "export-" + name in only:
            export_case(name, case, os.path.abspath(hebb), f"{folder}/foreign-export-{name}")
            print("export", name, flush=True)


if __name__ == "__main__":
    main()
