"""What can be known about a model from its small files, before any weight is loaded.

Imports neither torch, transformers nor vllm: a wrong pair of models is found in seconds.
"""

from slipstream.checkpoints.checkpoint import Checkpoint, open_checkpoint
from slipstream.checkpoints.vocabulary import (
    Agreement,
    Vocabulary,
    VocabularyComparison,
    compare_vocabularies,
    read_vocabulary,
)

__all__ = [
    "Agreement",
    "Checkpoint",
    "Vocabulary",
    "VocabularyComparison",
    "compare_vocabularies",
    "open_checkpoint",
    "read_vocabulary",
]
