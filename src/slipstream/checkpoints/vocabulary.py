"""Whether two tokenizers mean the same by the same number, token by token.

A drafter is fed the target's token ids and answers with ids of its own, so what must agree is the
map from id to token. Merges and pre-tokenization may differ: nothing is tokenized while drafting.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.errors import CheckpointError

OPAQUE_FILES = ("tokenizer.model", "tekken.json", "tiktoken.model", "qwen.tiktoken")


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of one tokenizer, or for a format that cannot be read, its file's hash alone."""

    name: str
    tokens: Mapping[int, str]
    added: frozenset[int] = frozenset()
    digest: str | None = None


class Agreement(Enum):
    SAME = "same"
    SPECIAL_TOKENS_DIFFER = "special tokens differ"
    DIFFERENT = "different"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class VocabularyComparison:
    target: Vocabulary
    drafter: Vocabulary
    agreement: Agreement
    differing: tuple[int, ...] = ()
    shared_tokens: int = 0

    def describe(self) -> str:
        """Return both tokenizers by name, and what differs."""
        target, drafter = self.target, self.drafter
        if self.agreement is Agreement.SAME:
            return f"{len(target.tokens)} tokens, all the same" if target.tokens else "the same file"
        if self.agreement is Agreement.UNKNOWN:
            return (
                f"the tokenizers of {target.name} and {drafter.name} are in formats that cannot be compared"
            )
        examples = ", ".join(
            f"id {i} is {target.tokens.get(i, 'absent')!r} in {Path(target.name).name} "
            f"and {drafter.tokens.get(i, 'absent')!r} in {Path(drafter.name).name}"
            for i in self.differing[:3]
        )
        return (
            f"the tokenizer of {target.name} ({len(target.tokens)} tokens) and that of {drafter.name} "
            f"({len(drafter.tokens)} tokens) differ at {len(self.differing)} ids: {examples}"
        )


def read_vocabulary(checkpoint: Checkpoint) -> Vocabulary | None:
    """Return the vocabulary of a checkpoint, or None if it has no tokenizer (heads do not)."""
    if path := checkpoint.file("tokenizer.json"):
        return _from_tokenizer_json(checkpoint.name, path)
    if path := checkpoint.file("vocab.json"):
        return _from_vocab_json(checkpoint, path)
    for filename in OPAQUE_FILES:
        if path := checkpoint.file(filename):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            return Vocabulary(checkpoint.name, {}, digest=digest)
    return None


def compare_vocabularies(target: Vocabulary, drafter: Vocabulary) -> VocabularyComparison:
    if not target.tokens or not drafter.tokens:
        same = target.digest is not None and target.digest == drafter.digest
        return VocabularyComparison(target, drafter, Agreement.SAME if same else Agreement.UNKNOWN)
    ids = target.tokens.keys() | drafter.tokens.keys()
    differing = tuple(sorted(i for i in ids if target.tokens.get(i) != drafter.tokens.get(i)))
    shared = len(set(target.tokens.values()) & set(drafter.tokens.values()))
    added = target.added | drafter.added
    if not differing:
        agreement = Agreement.SAME
    elif all(i in added for i in differing):
        agreement = Agreement.SPECIAL_TOKENS_DIFFER
    else:
        agreement = Agreement.DIFFERENT
    return VocabularyComparison(target, drafter, agreement, differing, shared)


def _from_tokenizer_json(name: str, path: Path) -> Vocabulary:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust side raises bare Exception
        raise CheckpointError(f"{name}: tokenizer.json cannot be read: {error}") from error
    tokens = {i: token for token, i in tokenizer.get_vocab(with_added_tokens=True).items()}
    return Vocabulary(name, tokens, frozenset(tokenizer.get_added_tokens_decoder()))


def _from_vocab_json(checkpoint: Checkpoint, path: Path) -> Vocabulary:
    """GPT-2 style files, as OPT and other older models have them."""
    tokens = {i: token for token, i in json.loads(path.read_text(encoding="utf-8")).items()}
    added = {i: token for token, i in checkpoint.json("added_tokens.json").items()}
    return Vocabulary(checkpoint.name, tokens | added, frozenset(added))
