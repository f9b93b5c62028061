"""Short names for content, to tell whether it is still the same."""

import hashlib
import json
from typing import Any


def fingerprint(content: Any) -> str:
    """Return a short name for anything that JSON can hold."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
