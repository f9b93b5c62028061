"""An existing small model that is to become a draft model: whether it fits the target."""

from pathlib import Path

from slipstream.checkpoints import open_checkpoint, read_vocabulary
from slipstream.errors import ConfigError
from slipstream.methods import DRAFT_MODEL
from slipstream.ops.pairing import why_not
from slipstream.training.recipe import SmallModel


def check_small_model(target_name: str, small: SmallModel) -> None:
    """Raise if the small model cannot be made a draft model of the target, by what can be known before a
    weight is loaded."""
    target, model = open_checkpoint(target_name), open_checkpoint(small.name)
    method = model.drafter_method
    if method != DRAFT_MODEL.name:
        raise ConfigError(
            f"--from {small.name}: it is a head of method {method}, not a model; give it as --start-from"
        )
    if reason := why_not(target, read_vocabulary(target), model, method):
        raise ConfigError(
            f"--from {small.name}: {reason}; take a smaller model of the target's own family (slipstream "
            f"pair {target_name} names some), or leave --from out: the drafter is then made of layers of the "
            "target"
        )
    if model.has_only_pickled_weights:
        raise ConfigError(
            f"--from {small.name}: it has pickled weights only, which are not loaded here; convert them to "
            "safetensors, or take a revision that has them"
        )
    if small.corpus is not None and not Path(small.corpus).is_file():
        raise ConfigError(f"--corpus {small.corpus}: there is no such file; give a text file or JSON lines")
