"""Everything that a training run is made of, in one schema. Saved, resolved, beside what it made."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slipstream.config.speculation import unknown_keys_message
from slipstream.errors import ConfigError

Method = Literal["mlp", "medusa", "eagle", "draft"]
METHODS: tuple[Method, ...] = ("mlp", "medusa", "eagle", "draft")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Data(_Part):
    """Answers that the target itself writes, and its hidden states while it reads them."""

    prompts: tuple[str, ...] = ("chat", "code", "math")
    """As workloads of `slipstream bench`: our names, JSON lines, `vllm: --dataset-name ...`."""
    texts: int = Field(2000, ge=4)
    """At most; prompts are answered again, sampled anew, until there are so many."""
    max_tokens: int = Field(160, ge=8)
    max_prompt_tokens: int = Field(512, ge=8)
    temperatures: tuple[Annotated[float, Field(ge=0, le=2)], ...] = (0.0, 1.0)
    """Of the sampling that will be served; each text has one of them."""
    top_p: float = Field(1.0, gt=0, le=1)
    held_out: float = Field(0.06, gt=0, lt=0.5)
    """Share of the prompts whose answers are only evaluated on, unless `held_out_prompts` are given."""
    held_out_prompts: tuple[str, ...] = ()
    max_gib: float = Field(8.0, gt=0)
    """Hidden states on disk, at most; texts that would need more are left out."""
    portion: int = Field(128, ge=1)
    """Texts that are written together; a run that is killed loses no more."""


class Training(_Part):
    epochs: float = Field(4.0, gt=0)
    budget_minutes: float = Field(40.0, gt=0)
    """Training ends here at the latest; the learning rate falls accordingly."""
    batch_tokens: int = Field(4096, ge=64)
    learning_rate: float | None = Field(None, gt=0)
    """None: what suits the method."""
    warmup: float = Field(0.03, ge=0, lt=1)
    evaluations: int = Field(12, ge=1)
    patience: int = Field(4, ge=1)
    """Evaluations without a better acceptance length before training ends."""
    seed: int = 0


class Drafter(_Part):
    tokens: int = Field(3, ge=1, le=8)
    """Draft tokens it is trained and evaluated for."""
    vocabulary: int = Field(8192, ge=16)
    """Of the most frequent tokens in the data: all that heads can draft, and what others learn to tell apart
    besides some rarer ones at a time."""
    width: int | None = Field(None, ge=8)
    """mlp: size of its state. None: twice the target's hidden size."""
    layers: int | None = Field(None, ge=1)
    """medusa: of each head; draft: of the model. None: 4."""


class Recipe(_Part):
    target: str
    method: Method
    data: Data = Data()
    training: Training = Training()
    drafter: Drafter = Drafter()
    start_from: str | None = None
    """A drafter of the same method, to be trained on for a target that has changed."""

    @classmethod
    def build(cls, options: dict[str, Any]) -> "Recipe":
        try:
            return cls(**options)
        except ValidationError as error:
            raise ConfigError("; ".join(_in_words(problem) for problem in error.errors())) from None

    @classmethod
    def load(cls, file: Path) -> dict[str, Any]:
        """The options of a recipe in JSON or YAML, to be completed on the command line."""
        try:
            options = yaml.safe_load(file.read_text())
        except (OSError, yaml.YAMLError) as error:
            raise ConfigError(f"recipe {file}: cannot be read: {error}") from None
        if not isinstance(options, dict):
            raise ConfigError(f"recipe {file}: expected a mapping, as in recipe.json of an earlier run")
        return options

    def save(self, folder: Path) -> None:
        (folder / "recipe.json").write_text(json.dumps(self.model_dump(), indent=2) + "\n")


def _in_words(problem: Any) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        part = {"data": Data, "training": Training, "drafter": Drafter}.get(str(problem["loc"][0]), Recipe)
        return f"recipe: {unknown_keys_message([where.rpartition('.')[2]], set(part.model_fields))}"
    return f"recipe: {where}: {problem['msg']}"
