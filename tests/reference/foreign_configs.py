"""What transformers makes of config.json files: python3 foreign_configs.py golden FILE | check FILE

golden writes real-shaped configurations of small size with what AutoConfig (transformers 5.24) fills in and derives: sizes, windows, frequencies of the
rotary positions in float64, norms. check compares a file with the installed version and prints what it sees otherwise.
"""
import json
import sys
import tempfile

import torch
import transformers
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
SMALL = {"vocab_size": 29, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}


def case(name, model_type, base=SMALL, **keys):
    """Keys with the value "-" are left out."""
    config = {"model_type": model_type, **base, **keys}
    return name, {k: v for k, v in config.items() if v != "-"}


CASES = [
    case("Llama 2", "llama", architectures=["LlamaForCausalLM"], _name_or_path="meta-llama/Llama-2-7b-hf", bos_token_id=1, eos_token_id=2, hidden_act="silu",
         initializer_range=0.02, max_position_embeddings=4096, num_key_value_heads=4, pretraining_tp=1, rms_norm_eps=1e-5, rope_scaling=None,
         tie_word_embeddings=False, torch_dtype="float16", transformers_version="4.31.0.dev0", use_cache=True),
    case("Llama 1, without what came later", "llama", num_key_value_heads="-", max_sequence_length="-", rms_norm_eps=1e-6, pad_token_id=0),
    case("Llama 3", "llama", attention_bias=False, attention_dropout=0.0, max_position_embeddings=8192, rms_norm_eps=1e-5, rope_scaling=None,
         rope_theta=500000.0, torch_dtype="bfloat16"),
    case("Llama 3.1", "llama", attention_bias=False, max_position_embeddings=131072, mlp_bias=False, rms_norm_eps=1e-5, rope_scaling=LLAMA3,
         rope_theta=500000.0, eos_token_id=[1, 2]),
    case("Llama 3.2", "llama", head_dim=16, max_position_embeddings=131072, rms_norm_eps=1e-5, rope_scaling={**LLAMA3, "factor": 32.0},
         rope_theta=500000.0, tie_word_embeddings=True),
    case("Llama 3.2 as transformers 5 writes it", "llama", head_dim=16, max_position_embeddings=131072,
         rope_parameters={**LLAMA3, "factor": 32.0, "rope_theta": 500000.0}, tie_word_embeddings=True, dtype="bfloat16"),
    case("Yarn-Llama-2", "llama", max_position_embeddings=65536, num_key_value_heads=4,
         rope_scaling={"factor": 16.0, "original_max_position_embeddings": 4096, "type": "yarn", "finetuned": True}),
    case("YaRN without truncation", "llama", max_position_embeddings=131072, rope_theta=150000.0,
         rope_scaling={"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0,
                       "truncate": False}),
    case("YaRN with mscale", "llama", max_position_embeddings=131072,
         rope_scaling={**YARN, "mscale": 0.7, "mscale_all_dim": 1.2, "beta_fast": 16, "beta_slow": 2}),
    case("YaRN with mscale alone", "llama", max_position_embeddings=131072, rope_scaling={**YARN, "mscale": 0.7}),
    case("YaRN with a factor of attention", "llama", max_position_embeddings=131072, rope_scaling={**YARN, "attention_factor": 1.25}),
    case("YaRN without an original length", "llama", max_position_embeddings=512, rope_scaling={"rope_type": "yarn", "factor": 4.0}),
    case("rope_theta beside rope_parameters", "llama", rope_theta=250000.0, rope_parameters={"rope_type": "default"}),
    case("YaRN in rope_parameters, rope_theta beside", "llama", rope_theta=250000.0, max_position_embeddings=131072, rope_parameters=YARN),
    case("both blocks", "llama", rope_theta=250000.0, max_position_embeddings=131072, rope_scaling=YARN,
         rope_parameters={**YARN, "rope_theta": 250000.0}),
    case("an empty block beside another", "llama", rope_scaling={}, rope_parameters={"rope_type": "default", "rope_theta": 7000.0}),
    case("the defaults of Llama", "llama", base={}),
    case("Mistral v0.1", "mistral", hidden_act="silu", max_position_embeddings=32768, rms_norm_eps=1e-5, rope_theta=10000.0, sliding_window=16),
    case("Mistral v0.3", "mistral", max_position_embeddings=32768, rms_norm_eps=1e-5, rope_theta=1000000.0, sliding_window=None, head_dim=16),
    case("Mistral without sliding_window", "mistral", num_key_value_heads="-", num_attention_heads=16, head_dim=None),
    case("the defaults of Mistral", "mistral", base={}),
    case("Qwen3", "qwen3", attention_bias=False, head_dim=32, max_position_embeddings=40960, max_window_layers=3, rope_scaling=None, rope_theta=1000000,
         sliding_window=None, tie_word_embeddings=True, use_sliding_window=False),
    case("Qwen3 with YaRN", "qwen3", head_dim=32, max_position_embeddings=131072, rope_theta=1000000, rope_scaling=YARN),
    case("Qwen3 without head_dim", "qwen3", sliding_window=4096, use_sliding_window=False),
    case("Qwen3 with windows from a layer on", "qwen3", head_dim=32, sliding_window=8, use_sliding_window=True, max_window_layers=1),
    case("Qwen3 with windows by layer", "qwen3", head_dim=32, sliding_window=8, use_sliding_window=True,
         layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    case("the defaults of Qwen3", "qwen3", base={}),
    case("Qwen2", "qwen2", attention_dropout=0.0, max_position_embeddings=131072, max_window_layers=2, rope_theta=1000000.0, sliding_window=131072,
         use_sliding_window=False, tie_word_embeddings=True),
    case("Qwen2.5 with YaRN", "qwen2", max_position_embeddings=32768, rope_theta=1000000.0, use_mrope=False,
         rope_scaling={"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}),
    case("Qwen2 with windows from a layer on", "qwen2", use_sliding_window=True, max_window_layers=2, sliding_window=7),
    case("the defaults of Qwen2", "qwen2", base={}),
    case("SmolLM2", "llama", is_llama_config=True, rope_interleaved=False, rope_theta=100000, rope_scaling=None, tie_word_embeddings=True,
         max_position_embeddings=8192, **{"transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}}),
    case("SmolLM3", "smollm3", num_hidden_layers=5, attention_bias=False, layer_types=["full_attention"] * 5, max_window_layers=28, mlp_bias=False,
         no_rope_layer_interval=4, no_rope_layers=[1, 1, 1, 0, 1], pretraining_tp=2, rope_scaling=None, rope_theta=5000000.0, sliding_window=None,
         use_sliding_window=False, max_position_embeddings=65536),
    case("SmolLM3 without lists", "smollm3", num_hidden_layers=9, no_rope_layer_interval=3),
    case("SmolLM3 with windows without rope", "smollm3", num_hidden_layers=5, use_sliding_window=True, sliding_window=9),
    case("the defaults of SmolLM3", "smollm3", base={}),
    case("Qwen3.5", "qwen3_5_text", num_hidden_layers=4, attention_bias=False, attn_output_gate=True, full_attention_interval=4, head_dim=32,
         layer_types=["linear_attention"] * 3 + ["full_attention"], linear_conv_kernel_dim=4, linear_key_head_dim=8, linear_num_key_heads=2,
         linear_num_value_heads=4, linear_value_head_dim=16, mamba_ssm_dtype="float32", max_position_embeddings=262144, mtp_num_hidden_layers=1,
         mtp_use_dedicated_embeddings=False, tie_word_embeddings=True,
         rope_parameters={"mrope_interleaved": True, "mrope_section": [11, 11, 10], "rope_type": "default", "rope_theta": 10000000,
                          "partial_rotary_factor": 0.25}),
    case("Qwen3.5 with an interval", "qwen3_5_text", num_hidden_layers=7, full_attention_interval=3),
    case("Qwen3.5 with YaRN", "qwen3_5_text", head_dim=64, max_position_embeddings=131072, rope_theta=1000000, partial_rotary_factor=0.5, rope_scaling=YARN),
    case("the defaults of Qwen3.5", "qwen3_5_text", base={}),
    case("Qwen3-Next, dense", "qwen3_next", num_hidden_layers=4, decoder_sparse_step=1, full_attention_interval=4, linear_conv_kernel_dim=4,
         linear_key_head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4, linear_value_head_dim=16, mlp_only_layers=[0, 1, 2, 3],
         moe_intermediate_size=512, norm_topk_prob=True, num_experts=512, num_experts_per_tok=10, output_router_logits=False,
         partial_rotary_factor=0.25, rope_scaling=None, rope_theta=10000000, router_aux_loss_coef=0.001, shared_expert_intermediate_size=512,
         use_sliding_window=False),
]


def windows_of(config):
    if config.model_type == "llama":
        return [0] * config.num_hidden_layers
    if config.model_type == "mistral":
        return [config.sliding_window or 0] * config.num_hidden_layers
    if config.model_type in ("qwen3_5_text", "qwen3_next"):
        return [-1 if t == "linear_attention" else 0 for t in config.layer_types]
    return [config.sliding_window if t == "sliding_attention" else 0 for t in config.layer_types]


def frequencies(config):
    """Radians per position in float64, and the factor of cos and sin."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    kept = torch.float, torch.float32
    torch.float = torch.float32 = torch.float64
    try:
        if kind in ROPE_INIT_FUNCTIONS:
            found, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
        else:  # transformers 5
            head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
            dims = int(head_dim * rope.get("partial_rotary_factor", 1.0))
            found, factor = 1.0 / rope["rope_theta"] ** (torch.arange(0, dims, 2, dtype=torch.float64) / dims), 1.0
    finally:
        torch.float, torch.float32 = kept
    return found.tolist(), factor


def expected(config):
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/config.json", "w") as f:
            json.dump(config, f)
        config = AutoConfig.from_pretrained(folder)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    out = {key: getattr(config, key) for key in ("vocab_size", "hidden_size", "intermediate_size", "rms_norm_eps", "tie_word_embeddings")}
    out.update({"num_heads": config.num_attention_heads, "num_kv_heads": config.num_key_value_heads, "head_dim": head_dim, "windows": windows_of(config)})
    out["frequencies"], out["rope_factor"] = frequencies(config)
    if config.model_type == "smollm3":
        out["has_rope"] = [bool(x) for x in config.no_rope_layers[: config.num_hidden_layers]]
    for key in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim"):
        if hasattr(config, "linear_" + key):
            out["linear_" + key] = getattr(config, "linear_" + key)
    return out


def main():
    verb, path = sys.argv[1:]
    if verb == "golden":
        cases = [{"name": name, "config": config, "expected": expected(config)} for name, config in CASES]
        with open(path, "w") as f:
            f.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
        return
    print("transformers", transformers.__version__)
    for c in json.load(open(path)):
        try:
            now = expected(c["config"])
        except Exception as error:
            print(f"{c['name']}: {type(error).__name__}: {error}")
            continue
        for key, value in c["expected"].items():
            if key == "frequencies" and len(now[key]) == len(value):
                differs = max(abs(a / b - 1) for a, b in zip(now[key], value)) > 1e-12 if value else False
            else:
                differs = now[key] != value
            if differs:
                print(f"{c['name']}: {key}: {str(now[key])[:60]}, golden {str(value)[:60]}")


main()
