"""Whether the arms wrote the same text, and if not, how close the decision was where they part."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.engine.load_generator import Request
from slipstream.serving.servers import Server

LOOKED_AT = 3  # differing texts of an arm and round whose gap is asked for; each costs one request


def first_difference(one: str, other: str) -> int | None:
    """Return the first character at which they differ, None if they are equal."""
    if one == other:
        return None
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@dataclass(frozen=True)
class GreedyReference:
    """What bare vLLM writes for a request when it is alone, with the gap of its top two at every token."""

    text: str
    starts: Sequence[int]
    """Of each token, as a character of the text."""
    gaps: Sequence[float]
    """Logarithm of how much more likely the first token was than the second."""

    @classmethod
    def ask(cls, server: Server, model: str, request: Request) -> "GreedyReference":
        body: dict[str, Any] = {"model": model, "max_tokens": request.max_tokens, "temperature": 0}
        if request.messages is None:
            answer = server.post("/v1/completions", {**body, "prompt": request.prompt, "logprobs": 2})
            logprobs = answer["choices"][0]["logprobs"]
            pieces = logprobs["tokens"]
            tops = [sorted(top.values(), reverse=True) for top in logprobs["top_logprobs"]]
            text = answer["choices"][0]["text"]
        else:
            body |= {"messages": request.messages, "logprobs": True, "top_logprobs": 2}
            answer = server.post("/v1/chat/completions", body)
            content = answer["choices"][0]["logprobs"]["content"]
            pieces = [entry["token"] for entry in content]
            tops = [sorted((t["logprob"] for t in e["top_logprobs"]), reverse=True) for e in content]
            text = answer["choices"][0]["message"]["content"] or ""
        starts = [0]
        for piece in pieces:
            starts.append(starts[-1] + len(piece))
        return cls(text, starts[:-1], [top[0] - top[1] if len(top) > 1 else float("inf") for top in tops])

    def gap_at(self, character: int) -> float | None:
        """Return the gap at the token that holds this character; None past the end, where it was the end
        that they decided differently."""
        if character >= len(self.text):
            return None
        inside = [gap for start, gap in zip(self.starts, self.gaps, strict=False) if start <= character]
        return inside[-1] if inside else None


class TextComparison:
    """Compares the arms of a round with the first one. Texts stay in memory; what is kept is counts,
    positions and gaps."""

    def __init__(self, bare: Server, model: str) -> None:
        self._bare = bare
        self._model = model
        self._references: dict[str, GreedyReference] = {}

    def compare(
        self, requests: Sequence[Request], texts: Mapping[str, Sequence[str | None]]
    ) -> dict[str, dict[str, Any]]:
        """Compare the texts of the arms; `texts` by arm, None where the request failed."""
        bare, *others = texts
        result = {}
        for arm in others:
            answered = [
                (request, ours, theirs)
                for request, ours, theirs in zip(requests, texts[bare], texts[arm], strict=True)
                if ours is not None and theirs is not None
            ]
            differing = [(request, theirs) for request, ours, theirs in answered if ours != theirs]
            gaps = [gap for r, theirs in differing[:LOOKED_AT] if (gap := self._gap(r, theirs)) is not None]
            result[arm] = {"compared": len(answered), "equal": len(answered) - len(differing), "gaps": gaps}
        return result

    def _gap(self, request: Request, text: str) -> float | None:
        """Return None if the arm wrote what bare vLLM writes alone: then it was bare vLLM in its batch that
        decided otherwise, at a near tie of its own. With a grammar the gap is not known: vLLM tells
        log-probabilities as they are before tokens are masked."""
        if "response_format" in request.body:
            return None
        key = repr((request.messages, request.prompt))
        if key not in self._references:
            self._references[key] = GreedyReference.ask(self._bare, self._model, request)
        reference = self._references[key]
        where = first_difference(reference.text, text)
        return None if where is None else reference.gap_at(where)
