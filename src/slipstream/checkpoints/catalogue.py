"""Published drafters by their target, as `catalogue.yaml` names them: heads that were made for it, and small
models with its tokenizer."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.methods import DRAFT_MODEL

FILE = Path(__file__).with_name("catalogue.yaml")
SHAPE = ("hidden_size", "num_hidden_layers", "vocab_size")


@dataclass(frozen=True)
class Published:
    """A published drafter, and a target that it can draft for."""

    drafter: str
    method: str
    target: str
    source: str
    """Where the drafter and its target are named."""
    date: str
    """Of the source."""
    by_shape: bool = False
    """Whether the target was told by its shape alone, which others may have too."""

    @property
    def note(self) -> str:
        """Return what `slipstream pair` says of it."""
        what = "has the tokenizer of" if self.method == DRAFT_MODEL.name else "published for"
        note = f"{what} {self.target}"
        if self.by_shape:
            return f"{note}, which has the target's shape: make sure that it is this model"
        return note


def published_drafters(target: Checkpoint) -> list[Published]:
    """Return the drafters published for a target: known by its id or the name of its folder, else by the
    shape in its config."""
    catalogue = read_catalogue()
    names, by_shape = _names_of(target, catalogue)
    return [
        Published(drafter, group["method"], made_for, group["source"], str(group["date"]), by_shape)
        for group in catalogue["drafters"]
        for drafter, targets in group["drafters"].items()
        for made_for in targets
        if made_for in names
    ]


@cache
def read_catalogue() -> Mapping[str, Any]:
    content: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return content


def _names_of(target: Checkpoint, catalogue: Mapping[str, Any]) -> tuple[set[str], bool]:
    """Return the ids that a target may be known by, and whether it has no more than their shape."""
    known = {
        made_for: made_for
        for group in catalogue["drafters"]
        for targets in group["drafters"].values()
        for made_for in targets
    }
    known |= catalogue["aliases"]
    if target.is_local:
        called = Path(target.name).expanduser().resolve().name.lower()
        same = {name for other, name in known.items() if other.rpartition("/")[2].lower() == called}
    else:
        same = {name for other, name in known.items() if other.lower() == target.name.lower()}
    if same:
        return same, False
    shape = [target.config.get("model_type"), *(target.text_config.get(key) for key in SHAPE)]
    return {name for name, theirs in catalogue["shapes"].items() if theirs == shape}, True
