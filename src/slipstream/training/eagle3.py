"""EAGLE-3 (arXiv 2503.01840): one decoder layer on states of the target's low, middle and high layers.

`fc` makes one state of the three. Attention is given the newest token's embedding and the state before it,
each normed, and its result is added to that state. Tokens are made of the layer's normed output; the next
pass is given the output before that norm. This is `llama_eagle3.py` of vLLM. Embeddings and output matrix are
the target's, which vLLM uses if the checkpoint has none.

As in the paper it is trained on its own states from the second draft token on, and only by what the target
would say: a state need not be like one of the target's.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from slipstream.checkpoints import open_checkpoint
from slipstream.errors import ConfigError
from slipstream.methods import EAGLE3
from slipstream.ops.host import vllm_folder
from slipstream.ops.model_checks import why_target_has_no_layers
from slipstream.training.drafter import Batch, Seen, Whitened, component_sizes, whiten
from slipstream.training.eagle import EagleHead, layer_layout
from slipstream.training.features import Target


def layers_read(num_layers: int) -> tuple[int, ...]:
    """Return the layers before which states are read, in rising order: vLLM's own choice. In models of fewer
    than 7 layers that would name one twice, and vLLM gives each state once."""
    if num_layers >= 7:
        return (2, num_layers // 2, num_layers - 3)
    return tuple(sorted({0, num_layers // 2, num_layers - 1}))


def layers_in_config(layers: Sequence[int]) -> dict[str, Any]:
    """Return the entries of config.json by which vLLM knows the layers. Both of its model runners read the
    first; without it V1 reads one of the names in `eagle_config`, and V2 the other."""
    numbers = list(layers)
    return {
        "eagle_aux_hidden_state_layer_ids": numbers,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": numbers, "layer_ids": numbers},
    }


def layers_named(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the layers that a head's config.json names, in rising order, which is that of vLLM's states;
    empty if it leaves them to vLLM."""
    nested = config.get("eagle_config") or {}
    key = "eagle_aux_hidden_state_layer_ids"
    return tuple(sorted(config.get(key) or nested.get(key) or nested.get("layer_ids") or ()))


def check_layers(target: str, start_from: str | None, layers: tuple[int, ...]) -> None:
    """Raise if vLLM would not hand over the states of the target's layers, or if the head to start from reads
    others than those before these layers."""
    if reason := why_target_has_no_layers(open_checkpoint(target), EAGLE3.name, vllm_folder()):
        raise ConfigError(f"{reason}. Take --method eagle, which reads the last state only")
    named = layers_named(open_checkpoint(start_from).config) if start_from else ()
    if named and named != layers:
        raise ConfigError(
            f"--start-from {start_from}: it reads the target's states before layers {_listed(named)}, and "
            f"here those before {_listed(layers)} are stored; leave --start-from out"
        )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


class Eagle3(EagleHead):
    method = EAGLE3.name
    architecture = "LlamaForCausalLMEagle3"
    layout: ClassVar = {
        "fc.weight": "fc.weight",
        "midlayer.input_layernorm.weight": "embedding_norm",
        "midlayer.hidden_norm.weight": "hidden_norm",
        **layer_layout("midlayer"),
        "norm.weight": "last_norm",
    }

    def __init__(self, target: Target, seen: Seen, num_tokens: int) -> None:
        assert seen.layers is not None, "EAGLE-3 learns from states of layers"
        size = target.hidden_size
        super().__init__(target, seen, num_tokens, fused=seen.layers.shape[1], attending=2 * size)
        self.layers_read = layers_read(target.config.get_text_config().num_hidden_layers)
        self.embedding_norm = nn.Parameter(torch.ones(size))
        self.hidden_norm = nn.Parameter(torch.ones(size))
        self.last_norm = nn.Parameter(torch.ones(size))
        self._start(seen.common, seen.hidden, seen.layers.split(size, dim=-1))

    @torch.no_grad()
    def _start(self, common: torch.Tensor, hidden: torch.Tensor, layers: tuple[torch.Tensor, ...]) -> None:
        """Start near the highest of the states it is given, with all components of one size. The last norm
        gives each the size that it has in the target's last state, which the output matrix understands."""
        size = hidden.shape[1]
        sizes = [component_sizes(states) for states in layers]
        self.fc.weight[:, -size:] += torch.eye(size)
        self.fc.weight.div_(torch.cat(sizes))
        self.last_norm.copy_(component_sizes(hidden))
        whiten(self.fc, Whitened(*layers))
        embeddings = self._normed(self.embedding[common], self.embedding_norm)
        whitened = Whitened(embeddings, self._normed(layers[-1].float() / sizes[-1], self.hidden_norm))
        for projection in (self.q_proj, self.k_proj, self.v_proj):
            whiten(projection, whitened)

    def _read(self, batch: Batch) -> torch.Tensor:
        return self.fc(batch.layers)

    def _enter(self, newest: torch.Tensor, before: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        normed = self._normed(newest, self.embedding_norm), self._normed(before, self.hidden_norm)
        return torch.cat(normed, dim=-1), before

    def _leave(self, x: torch.Tensor) -> torch.Tensor:
        return self._normed(x, self.last_norm)

    def exported(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        config, weights = super().exported()
        config |= {
            "draft_vocab_size": config["vocab_size"],
            "num_aux_hidden_states": len(self.layers_read),
            **layers_in_config(self.layers_read),
        }
        return config, weights
