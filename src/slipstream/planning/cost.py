"""What a step costs that decodes some requests and verifies draft tokens for each of them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from slipstream.errors import ConfigError


@dataclass(frozen=True)
class CostCurve:
    """Measured on a grid, linear between its points and, beyond it, along its last pieces."""

    requests: tuple[int, ...]
    drafts: tuple[int, ...]
    """Draft tokens per request, beginning with 0."""
    seconds: tuple[tuple[float, ...], ...]
    """A row per number of requests, a column per number of draft tokens."""
    bare: tuple[float, ...] = ()
    """Per number of requests, a step of an engine that cannot speculate: a little less than with 0 drafts."""
    prefill_fixed: float = 0.0
    """A step with prompts in it costs `prefill_fixed` plus `prefill_per_token` for every prompt token."""
    prefill_per_token: float = 0.0

    def __post_init__(self) -> None:
        grid = np.asarray(self.seconds, dtype=float)
        if grid.shape != (len(self.requests), len(self.drafts)) or grid.size == 0:
            raise ConfigError("cost curve: seconds needs a row per requests and a column per drafts")
        if self.drafts[0] != 0 or list(self.drafts) != sorted(set(self.drafts)):
            raise ConfigError("cost curve: drafts must rise, beginning with 0")
        if list(self.requests) != sorted(set(self.requests)) or self.requests[0] < 1:
            raise ConfigError("cost curve: requests must rise, beginning with 1 or more")
        if self.bare and len(self.bare) != len(self.requests):
            raise ConfigError("cost curve: bare needs a number per requests")
        if not all(np.isfinite(some).all() and (np.asarray(some) > 0).all() for some in (grid, self.bare)):
            raise ConfigError("cost curve: every step takes some time; seconds must be positive")

    def step(self, requests: float, drafts: float) -> float:
        """Return seconds of a step; `drafts` is the mean number of draft tokens per request."""
        row = [_line(self.drafts, seconds, drafts) for seconds in self.seconds]
        return max(_line(self.requests, row, requests), 1e-9)

    def bare_step(self, requests: float) -> float:
        """Return seconds of a step without speculation."""
        if not self.bare:
            return self.step(requests, 0)
        return max(_line(self.requests, self.bare, requests), 1e-9)

    def prefill(self, prompt_tokens: float) -> float:
        return self.prefill_fixed + self.prefill_per_token * prompt_tokens if prompt_tokens else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "requests": list(self.requests),
            "drafts": list(self.drafts),
            "seconds": [list(row) for row in self.seconds],
            "bare": list(self.bare),
            "prefill_fixed": self.prefill_fixed,
            "prefill_per_token": self.prefill_per_token,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        try:
            return cls(
                tuple(int(b) for b in content["requests"]),
                tuple(int(k) for k in content["drafts"]),
                tuple(tuple(float(t) for t in row) for row in content["seconds"]),
                tuple(float(t) for t in content.get("bare", ())),
                float(content.get("prefill_fixed", 0.0)),
                float(content.get("prefill_per_token", 0.0)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"cost curve: needs requests, drafts and seconds ({error})") from None

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return a file of its own, or `tune.json`, which has one in it."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"cost curve {path}: {error}") from None
        return cls.from_dict(content.get("cost_curve", content))


def _line(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Piecewise linear through the points, and on along the first and last piece."""
    if len(xs) == 1:
        return float(ys[0])
    piece = int(np.clip(np.searchsorted(xs, x) - 1, 0, len(xs) - 2))
    (x0, x1), (y0, y1) = xs[piece : piece + 2], ys[piece : piece + 2]
    return float(y0 + (y1 - y0) * (x - x0) / (x1 - x0))
