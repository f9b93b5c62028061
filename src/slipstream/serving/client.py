"""A running server, asked for plain completions of token ids, so that a question is always the same."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from slipstream.errors import SlipstreamError

ANSWER_SECONDS = 600  # that an answer may take
ID = "token_id:"
COUNTERS = {
    "drafts": "vllm:spec_decode_num_drafts_total",
    "draft_tokens": "vllm:spec_decode_num_draft_tokens_total",
    "accepted_tokens": "vllm:spec_decode_num_accepted_tokens_total",
    "preemptions": "vllm:num_preemptions_total",
    "cached_prompt_tokens": "vllm:prefix_cache_hits_total",
}


class NoAnswer(SlipstreamError):
    """The server could not be reached, or failed."""


class Refused(NoAnswer):
    """The server does not take such a request (HTTP 4xx)."""


@dataclass(frozen=True)
class Answer:
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    """Of each token, if asked for."""
    likeliest: tuple[Mapping[int, float], ...] = ()
    """At each position the log-probabilities of as many of the likeliest tokens as were asked for."""


@dataclass(frozen=True)
class Served:
    """A server, and how its requests are to be speculated for: as it likes (None), `off`, or with so many
    draft tokens wherever there are any."""

    url: str
    speculate: str | int | None = None
    api_key: str | None = field(default=None, repr=False)

    @property
    def model(self) -> str:
        name: str = self._call("/v1/models")["data"][0]["id"]
        return name

    @property
    def longest(self) -> int:
        """Return the most tokens that a prompt and its answer may have."""
        tokens: int = self._call("/v1/models")["data"][0]["max_model_len"]
        return tokens

    def tokens_of(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the tokens of a conversation, by the model's chat template; of its text alone if there is
        none."""
        try:
            body: dict[str, Any] = {"model": self.model, "messages": list(messages)}
            tokens: list[int] = self._call("/tokenize", body)["tokens"]
        except NoAnswer:
            text = "\n".join(str(message["content"]) for message in messages)
            tokens = self._call("/tokenize", {"model": self.model, "prompt": text})["tokens"]
        return tokens

    def ask(self, requests: Sequence[Mapping[str, Any]], at_once: int) -> list[list[Answer]]:
        """Return the answers to each request (`n` of them), so many requests at a time."""
        model = self.model

        def one(request: Mapping[str, Any]) -> list[Answer]:
            body = {"model": model, "return_token_ids": True, "return_tokens_as_token_ids": True, **request}
            if self.speculate is not None:
                body["vllm_xargs"] = {"speculate": self.speculate}
            return [_answer(choice) for choice in self._call("/v1/completions", body)["choices"]]

        with ThreadPoolExecutor(at_once) as threads:
            return list(threads.map(one, requests))

    def counters(self) -> dict[str, float]:
        """Return the counters since the server started; nothing for those that it does not have."""
        from prometheus_client.parser import text_string_to_metric_families

        with self._open("/metrics") as answer:
            text = answer.read().decode()
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {
            name: sum(sample.value for sample in samples if sample.name == metric)
            for name, metric in COUNTERS.items()
        }

    def risen_since(self, before: Mapping[str, float]) -> dict[str, float]:
        """Return by how much the counters have risen since they were `before`."""
        return {name: value - before[name] for name, value in self.counters().items()}

    def _call(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        with self._open(path, body) as answer:
            content: dict[str, Any] = json.load(answer)
        return content

    def _open(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        address = self.url.rstrip("/").removesuffix("/v1") + path
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        data = None if body is None else json.dumps(body).encode()
        try:
            return urllib.request.urlopen(
                urllib.request.Request(address, data, headers), timeout=ANSWER_SECONDS
            )
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")[:300]
            kind = Refused if 400 <= error.code < 500 else NoAnswer
            raise kind(f"{address} answers {error.code}: {said}") from None
        except OSError as error:
            raise NoAnswer(f"{address}: {error}; is the server running?") from None


def _answer(choice: Mapping[str, Any]) -> Answer:
    logprobs = choice.get("logprobs") or {}
    return Answer(
        tuple(choice["token_ids"]),
        tuple(logprobs.get("token_logprobs") or ()),
        tuple(
            {int(token.removeprefix(ID)): value for token, value in top.items()}
            for top in logprobs.get("top_logprobs") or ()
        ),
    )
