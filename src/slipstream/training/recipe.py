"""Everything that a training run is made of, in one schema. Saved, resolved, beside what it made."""

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slipstream.config.speculation import unknown_keys_message
from slipstream.errors import ConfigError

Method = Literal["mlp", "medusa", "eagle", "eagle3", "draft"]
METHODS: tuple[Method, ...] = ("mlp", "medusa", "eagle", "eagle3", "draft")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Data(_Part):
    """Answers that the target itself writes, and its hidden states while it reads them."""

    prompts: tuple[str, ...] = ("chat", "code", "math")
    """As workloads of `slipstream bench`: our names, JSON lines, `vllm: --dataset-name ...`."""
    texts: Annotated[int, Field(ge=4)] = 2000
    """At most; prompts are answered again, sampled anew, until there are so many."""
    max_tokens: Annotated[int, Field(ge=8)] = 160
    max_prompt_tokens: Annotated[int, Field(ge=8)] = 512
    temperatures: tuple[Annotated[float, Field(ge=0, le=2)], ...] = (0.0, 1.0)
    """Of the sampling that will be served; each text has one of them."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    held_out: Annotated[float, Field(gt=0, lt=0.5)] = 0.06
    """Share of the prompts whose answers are only evaluated on, unless `held_out_prompts` are given."""
    held_out_prompts: tuple[str, ...] = ()
    max_gib: Annotated[float, Field(gt=0)] = 8.0
    """Hidden states on disk that the method reads, at most; texts that would need more are left out."""
    portion: Annotated[int, Field(ge=1)] = 256
    """Texts that are written together; a run that is killed loses no more."""


class Training(_Part):
    epochs: Annotated[float, Field(gt=0)] = 4.0
    budget_minutes: Annotated[float, Field(gt=0)] = 40.0
    """Training ends here at the latest; the learning rate falls accordingly."""
    batch_tokens: Annotated[int, Field(ge=64)] = 1024
    learning_rate: Annotated[float | None, Field(gt=0)] = None
    """None: what suits the method."""
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.03
    evaluations: Annotated[int, Field(ge=1)] = 8
    patience: Annotated[int, Field(ge=1)] = 4
    """Evaluations without a better acceptance length before training ends."""
    seed: int = 0


class DrafterShape(_Part):
    tokens: Annotated[int, Field(ge=1, le=8)] = 3
    """Draft tokens it is trained and evaluated for."""
    vocabulary: Annotated[int, Field(ge=16)] = 16384
    """mlp: how many of the most frequent tokens in the data it can draft; the others draft all."""
    width: Annotated[int | None, Field(ge=8)] = None
    """mlp: size of its state. None: twice the target's hidden size."""
    layers: Annotated[int | None, Field(ge=1)] = None
    """medusa: of each head; draft: of the model. None: 4."""


class SmallModel(_Part):
    """draft: an existing small model with the target's tokenizer, in place of layers of the target."""

    name: str
    """A folder or Hugging Face id."""
    trust_remote_code: bool = False
    corpus: str | None = None
    """A text file, or JSON lines with a `text` each, that it learns to continue before it is distilled."""
    corpus_minutes: Annotated[float, Field(gt=0)] = 10.0
    """Spent on that at most."""


class Recipe(_Part):
    target: str
    method: Method
    data: Data = Data()
    training: Training = Training()
    drafter: DrafterShape = DrafterShape()
    start_from: str | None = None
    """A drafter of the same method, to be trained on for a target that has changed."""
    small_model: SmallModel | None = None

    @classmethod
    def build(cls, options: dict[str, Any]) -> "Recipe":
        try:
            recipe = cls(**options)
        except ValidationError as error:
            raise ConfigError("; ".join(_in_words(problem) for problem in error.errors())) from None
        if recipe.small_model is None:
            return recipe
        small = recipe.small_model.name
        if recipe.method != "draft":
            raise ConfigError(f"--from {small}: only --method draft begins with a model, not {recipe.method}")
        if recipe.start_from:
            raise ConfigError(
                f"--from {small} and --start-from {recipe.start_from}: give one of them; --from takes an "
                "exported draft model too"
            )
        return recipe

    @classmethod
    def load(cls, file: Path) -> dict[str, Any]:
        """Return the options of a recipe in JSON or YAML, to be completed on the command line."""
        try:
            options = yaml.safe_load(file.read_text())
        except (OSError, yaml.YAMLError) as error:
            raise ConfigError(f"recipe {file}: cannot be read: {error}") from None
        if not isinstance(options, dict):
            raise ConfigError(f"recipe {file}: expected a mapping, as in recipe.json of an earlier run")
        return options


def _in_words(problem: Any) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        parts: dict[str, type[BaseModel]] = {
            "data": Data,
            "training": Training,
            "drafter": DrafterShape,
            "small_model": SmallModel,
        }
        part = parts.get(str(problem["loc"][0]), Recipe)
        return f"recipe: {unknown_keys_message([where.rpartition('.')[2]], set(part.model_fields))}"
    return f"recipe: {where}: {problem['msg']}"
