"""The drafting methods: one row each, which configuration, checks, pairing and the engine go by.

To add one, see docs/adding-a-method.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    LOOKUP = "lookup"
    """Searches the text so far; has no weights."""
    MODEL = "model"
    """A smaller language model, with a vocabulary of its own."""
    HEAD = "head"
    """Reads the target's hidden states, so it is made for one target."""
    CUSTOM = "custom"
    """A class of the user's, which vLLM loads by its dotted path."""


@dataclass(frozen=True)
class Signs:
    """What a checkpoint of a method is recognised by: any of these, as vLLM itself does."""

    model_types: tuple[str, ...] = ()
    model_type_endings: tuple[str, ...] = ()
    config_keys: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    """Parts of an architecture's name."""
    names: tuple[str, ...] = ()
    """Parts of the checkpoint's name, in lower case."""

    def match(self, name: str, architectures: Sequence[str], config: Mapping[str, Any]) -> bool:
        model_type = str(config.get("model_type", ""))
        return (
            model_type in self.model_types
            or model_type.endswith(self.model_type_endings)
            or any(key in config for key in self.config_keys)
            or self.match_architecture(architectures)
            or any(part in name.lower() for part in self.names)
        )

    def match_architecture(self, architectures: Sequence[str]) -> bool:
        return any(part in architecture for part in self.architectures for architecture in architectures)


@dataclass(frozen=True)
class Method:
    """A drafting method, and all that the rest of the code knows of it."""

    name: str
    """As vLLM calls it."""
    kind: Kind
    composable: bool = False
    """It can be asked for a draft, or not, at each step. vLLM runs the others at every step, alone."""
    plans_ahead: bool = False
    """Where vLLM runs it alone, the number of draft tokens can be planned a step ahead."""
    overlaid: bool = False
    """On the V2 model runner, which runs it at every step, other drafts can be put in place of its own."""
    one_pass: bool = False
    """All tokens come from one pass, whatever their number."""
    fixed_k: bool = False
    """vLLM's implementation always drafts all its tokens, and stops if it is told another number."""
    sees_every_step: bool = False
    """It must be run at every step, whether its drafts are wanted or not."""
    reads_layers: bool = False
    """It reads the states before some of the target's layers, which vLLM hands over for some targets only."""
    takes_target_vocabulary: bool = False
    """vLLM takes its vocabulary from the target, so its own need not match."""
    offered_keys: tuple[str, ...] = ()
    """Of the checkpoint's config: how many tokens it offers. Empty: any number."""
    beyond_offered: str = "any"
    """Whether more may be drafted than it offers: any, multiples, none."""
    needs_checkpoint: bool = True
    """Else it may be part of the target's."""
    runner: str = "any"
    """The model runner of vLLM 0.32 that has it: any, V1, V2."""
    parallel_on_v2: bool = False
    """With vLLM's `parallel_drafting` it stays on the V2 runner."""
    synchronous: bool = False
    """vLLM refuses it with asynchronous scheduling."""
    package: str = ""
    """What must be installed for vLLM to run it."""
    implementation: str = ""
    """Our class that runs it in the workers, where vLLM reads the config but has no implementation."""
    signs: Signs = Signs()


NGRAM = Method("ngram", Kind.LOOKUP, synchronous=True)
SUFFIX = Method(
    "suffix", Kind.LOOKUP, fixed_k=True, runner="V1", synchronous=True, package="arctic-inference==0.1.1"
)  # fmt: skip
CUSTOM_CLASS = Method("custom_class", Kind.CUSTOM, runner="V1", synchronous=True)
MEDUSA = Method(
    "medusa", Kind.HEAD, composable=True, one_pass=True, fixed_k=True, takes_target_vocabulary=True,
    offered_keys=("num_heads", "medusa_num_heads"), beyond_offered="none", runner="V1", synchronous=True,
    signs=Signs(model_types=("medusa",), config_keys=("medusa_num_heads",)),
)  # fmt: skip
MLP_SPECULATOR = Method(
    "mlp_speculator", Kind.HEAD, composable=True, offered_keys=("n_predict",), beyond_offered="none",
    runner="V1", synchronous=True, implementation="slipstream.engine.worker.drafters.MLPSpeculatorDrafter",
    signs=Signs(model_types=("mlp_speculator",)),
)  # fmt: skip
EAGLE3 = Method(
    "eagle3", Kind.HEAD, composable=True, plans_ahead=True, overlaid=True, sees_every_step=True,
    reads_layers=True,
    signs=Signs(architectures=("Eagle3",), names=("eagle3",)),
)  # fmt: skip
EAGLE = Method(
    "eagle", Kind.HEAD, composable=True, plans_ahead=True, overlaid=True, sees_every_step=True,
    signs=Signs(model_types=("eagle",), architectures=("Eagle",), names=("eagle-",)),
)  # fmt: skip
DFLASH = Method(
    "dflash", Kind.HEAD, overlaid=True, one_pass=True, reads_layers=True, offered_keys=("block_size",),
    parallel_on_v2=True, signs=Signs(architectures=("DFlash",), names=("dflash",)),
)  # fmt: skip
DSPARK = Method(
    "dspark", Kind.HEAD, overlaid=True, one_pass=True, reads_layers=True,
    offered_keys=("block_size", "dspark_block_size"),
    needs_checkpoint=False, runner="V2", parallel_on_v2=True,
    signs=Signs(architectures=("DSpark",), names=("dspark",)),
)  # fmt: skip
MTP = Method(
    "mtp", Kind.HEAD, overlaid=True, offered_keys=("n_predict", "num_nextn_predict_layers"),
    beyond_offered="multiples", needs_checkpoint=False,
    signs=Signs(model_types=("mtp",), model_type_endings=("_mtp",)),
)  # fmt: skip
DRAFT_MODEL = Method("draft_model", Kind.MODEL, composable=True, plans_ahead=True, overlaid=True)

METHODS = {
    method.name: method
    for method in (
        NGRAM, SUFFIX, CUSTOM_CLASS,
        # Drafters, in the order in which a checkpoint is recognised as one; a draft model is what is left.
        MEDUSA, MLP_SPECULATOR, EAGLE3, EAGLE, DFLASH, DSPARK, MTP, DRAFT_MODEL,
    )
}  # fmt: skip
DRAFTERS = tuple(name for name, method in METHODS.items() if method.kind in (Kind.MODEL, Kind.HEAD))


def method_of(name: str) -> Method:
    """Return the row of a method; of one that only vLLM knows, a head that vLLM runs alone."""
    return METHODS.get(name) or Method(name, Kind.HEAD)


def recognise(name: str, architectures: Sequence[str], config: Mapping[str, Any]) -> str:
    """Return the method by which a checkpoint is used as a drafter, which vLLM is then told. An architecture
    says more than a name, by which vLLM alone would go: an EAGLE head may lie in a folder that is named after
    EAGLE-3."""
    signs = {drafter: METHODS[drafter].signs for drafter in DRAFTERS}
    by_architecture = [drafter for drafter in DRAFTERS if signs[drafter].match_architecture(architectures)]
    by_any = [drafter for drafter in DRAFTERS if signs[drafter].match(name, architectures, config)]
    return next(iter([*by_architecture, *by_any]), DRAFT_MODEL.name)
