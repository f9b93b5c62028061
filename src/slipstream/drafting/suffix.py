"""Suffix decoding: what most often followed the end of this text, in the request and in earlier ones."""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from slipstream.drafting.base import Draft, Proposer, RequestInfo
from slipstream.drafting.token_index import LazyTokenIndex, TokenIndex
from slipstream.drafting.token_index_kernels import END

OWN_ORDER = 2  # tokens that must match in the request's own text
SHARED_ORDER = 3  # in other requests' texts, where chance matches are more common


@dataclass
class _Running:
    info: RequestInfo
    text: LazyTokenIndex


@dataclass
class _Past:
    """What one tenant's finished requests have said."""

    text: TokenIndex
    ends: deque[tuple[float, int]] = field(default_factory=deque)
    """When each request finished, and where its text ends, oldest first."""


class SharedTexts:
    """Finished texts, one index per tenant, so that nothing of one tenant can be found, or felt in the
    time a search takes, by another. Bounded in tokens over all tenants and in age."""

    def __init__(self, max_tokens: int, max_age: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_tokens = max_tokens
        self.max_age = max_age
        self._clock = clock
        self._tenants: OrderedDict[str, _Past] = OrderedDict()  # the one that finished longest ago first
        self._finished: deque[tuple[float, str]] = deque()
        """When each request finished, and whose it was, oldest first."""
        self.num_tokens = 0
        self._slots = 0  # what is allocated for them, at most twice as much

    @property
    def num_bytes(self) -> int:
        return sum(past.text.num_bytes for past in self._tenants.values())

    def find(self, tenant: str) -> TokenIndex | None:
        self.expire()
        past = self._tenants.get(tenant)
        return past.text if past else None

    def expire(self) -> None:
        """Forget what is too old, whoever it belongs to."""
        oldest = self._clock() - self.max_age
        while self._finished and self._finished[0][0] < oldest:
            _, tenant = self._finished.popleft()
            past = self._tenants.get(tenant)
            if past is None:
                continue
            with self._counted(past.text):
                while past.ends and past.ends[0][0] < oldest:
                    past.text.forget_before(past.ends.popleft()[1])
            if not past.ends:
                self._drop(tenant)

    def add(self, tenant: str, tokens: Sequence[int]) -> None:
        past = self._tenants.get(tenant)
        if past is None:
            past = self._tenants[tenant] = _Past(TokenIndex(SHARED_ORDER, self.max_tokens))
            self._slots += past.text.num_slots
        self._tenants.move_to_end(tenant)
        with self._counted(past.text):
            past.text.append([*tokens, END])
        now = self._clock()
        past.ends.append((now, past.text.end))
        self._finished.append((now, tenant))
        while past.ends[0][1] <= past.text.oldest:
            past.ends.popleft()
        self.expire()
        while len(self._tenants) > 1 and (
            self.num_tokens > self.max_tokens or self._slots > 2 * self.max_tokens
        ):
            self._drop(next(iter(self._tenants)))

    @contextmanager
    def _counted(self, text: TokenIndex) -> Iterator[None]:
        tokens, slots = len(text), text.num_slots
        yield
        self.num_tokens += len(text) - tokens
        self._slots += text.num_slots - slots

    def _drop(self, tenant: str) -> None:
        past = self._tenants.pop(tenant)
        self.num_tokens -= len(past.text)
        self._slots -= past.text.num_slots


class SuffixProposer(Proposer):
    """The likelier continuation of two: by the request's own text, and by its tenant's finished ones.

    Counts are taken over the 64 most recent occurrences; the published method counts all of them.
    """

    name = "suffix"

    def __init__(
        self,
        shared: SharedTexts | None = None,
        share_prompts: bool = False,
        per_matched_token: float = 1.0,
    ) -> None:
        self._shared = shared
        self._share_prompts = share_prompts
        self._per_matched_token = per_matched_token
        self._running: dict[str, _Running] = {}
        self._searched = self._found = 0

    def start(self, request: RequestInfo) -> None:
        self._running[request.id] = _Running(request, LazyTokenIndex(OWN_ORDER))

    def observe(self, request_id: str, tokens: Sequence[int]) -> None:
        self._running[request_id].text.append(tokens)

    def propose(self, wanted: Mapping[str, int]) -> dict[str, Draft]:
        drafts = {}
        if self._shared is not None:
            self._shared.expire()
        for request_id, max_tokens in wanted.items():
            running = self._running[request_id]
            past = self._past(running.info)
            if past is None and not running.text.may_repeat:
                continue
            text = running.text.indexed()
            tokens, survival = text.likely_continuation(text, max_tokens, self._per_matched_token)
            if past is not None:
                others = text.likely_continuation(past, max_tokens, self._per_matched_token)
                self._searched += 1
                if others[1].sum() > survival.sum():
                    self._found += 1
                    tokens, survival = others
            if len(tokens):
                drafts[request_id] = Draft(tokens.tolist(), survival.tolist())
        return drafts

    def propose_after(self, request_id: str, tokens: Sequence[int], max_tokens: int) -> Draft:
        text = self._running[request_id].text.indexed()
        found, survival = text.continuation_after(tokens, max_tokens, self._per_matched_token)
        return Draft(found.tolist(), survival.tolist())

    def shared_text(self) -> Mapping[str, int] | None:
        if self._shared is None:
            return None
        return {"tokens": self._shared.num_tokens, "searched": self._searched, "found": self._found}

    def _past(self, request: RequestInfo) -> TokenIndex | None:
        if self._shared is None or request.tenant is None:
            return None
        return self._shared.find(request.tenant)

    def forget(self, request_id: str) -> None:
        running = self._running.pop(request_id, None)
        if running is None or self._shared is None or running.info.tenant is None:
            return
        first = 0 if self._share_prompts else running.info.num_prompt_tokens
        if tokens := running.text.indexed().slice(first):
            self._shared.add(running.info.tenant, tokens)
