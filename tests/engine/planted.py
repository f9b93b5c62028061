"""Workers and proposers with a bug planted in them, for tests that must see it. Used by dotted path."""

import itertools
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.drafting import Draft, Proposer
from slipstream.drafting.ngram import NgramProposer
from slipstream.engine.worker.drafter_cache import DrafterCache
from slipstream.engine.worker.worker import CPUWorker


class ShiftedContextWorker(CPUWorker):
    """The n-gram proposer does not see the newest token: drafts are off by one, never the output."""

    def init_device(self) -> None:
        super().init_device()
        drafter: Any = self.model_runner.drafter
        propose = drafter.propose

        def propose_shifted(
            num_speculative_tokens: int,
            sampled_token_ids: list[list[int]],
            num_tokens_no_spec: Any,
            token_ids_cpu: Any,
            slot_mappings: Any = None,
        ) -> list[list[int]]:
            return propose(num_speculative_tokens, sampled_token_ids, num_tokens_no_spec - 1, token_ids_cpu)

        drafter.propose = propose_shifted


class AcceptsTooMuchWorker(CPUWorker):
    """The sampler takes the first rejected draft token instead of the one the target recovers."""

    def init_device(self) -> None:
        super().init_device()
        runner: Any = self.model_runner
        sample = runner._sample

        def accept_one_more(logits: Any, metadata: Any) -> Any:
            output = sample(logits, metadata)
            if metadata is None:
                return output
            sampled = output.sampled_token_ids  # [requests, K + 1], -1 after the last valid token
            start = 0
            for row, num_drafts in enumerate(metadata.num_draft_tokens):
                last = int((sampled[row] != -1).sum()) - 1
                if last < num_drafts:
                    sampled[row, last] = metadata.draft_token_ids[start + last]
                start += num_drafts
            return output

        runner._sample = accept_one_more


class PrefersTheBestWorker(CPUWorker):
    """After one rejection in twenty the most probable token is taken instead of one that is sampled: a bias
    of about 0.02 in total variation where three tokens are about equally likely."""

    SHARE = 0.05

    def init_device(self) -> None:
        super().init_device()
        sampler: Any = self.model_runner.rejection_sampler
        forward = sampler.forward
        random = np.random.default_rng(0)

        def prefer_the_best(metadata: Any, draft_probs: Any, logits: Any, sampling_metadata: Any) -> Any:
            output = forward(metadata, draft_probs, logits, sampling_metadata)
            sampled = output.sampled_token_ids  # [requests, K + 1], -1 after the last valid token
            start = 0
            for row, num_drafts in enumerate(metadata.num_draft_tokens):
                last = int((sampled[row] != -1).sum()) - 1
                if last < num_drafts and random.random() < self.SHARE:
                    sampled[row, last] = logits[metadata.target_logits_indices[start + last]].argmax()
                start += num_drafts
            return output

        sampler.forward = prefer_the_best


class FaultyNgram(NgramProposer):
    """N-gram lookup in which one call in ten goes wrong, each time in another way."""

    name = "faulty"

    def __init__(self) -> None:
        super().__init__()
        self._random = np.random.default_rng(0)
        self._ways = itertools.cycle(("raise", "nan", "length", "token", "none"))

    def observe(self, request_id: str, tokens: Any) -> None:
        if self._random.random() < 0.001:
            raise RuntimeError("planted")
        super().observe(request_id, tokens)

    def propose(self, wanted: Any) -> Any:
        drafts: dict[str, Any] = dict(super().propose(wanted))
        if not drafts or self._random.random() > 0.1:
            return drafts
        victim = next(iter(drafts))
        way = next(self._ways)
        if way == "raise":
            raise RuntimeError("planted")
        drafts[victim] = {
            "nan": Draft([1], [math.nan]),
            "length": Draft([1] * 99, [0.5] * 99),
            "token": Draft([10**6], [0.5]),
            "none": None,
        }[way]
        return drafts


class StallingNgram(NgramProposer):
    """N-gram lookup that takes half a second in one call of a hundred."""

    name = "stalling"

    def __init__(self) -> None:
        super().__init__()
        self._calls = 0

    def propose(self, wanted: Any) -> Any:
        self._calls += 1
        if self._calls % 100 == 0:
            time.sleep(0.5)
        return super().propose(wanted)


class FaultyDrafterWorker(CPUWorker):
    """The drafter fails in one call out of ten, and from call `dies_after` on in each."""

    dies_after = math.inf

    def init_device(self) -> None:
        super().init_device()
        random = np.random.default_rng(0)
        runner: Any = self.model_runner
        draft, calls = runner.draft, itertools.count()

        def sometimes(wanted: Any) -> Any:
            if wanted and (next(calls) >= self.dies_after or random.random() < 0.1):
                raise RuntimeError("planted")
            return draft(wanted)

        runner.draft = sometimes


class DyingDrafterWorker(FaultyDrafterWorker):
    """And dies for good, some minutes into a soak."""

    dies_after = 2_000


class SkippingWorker(CPUWorker):
    """The drafter is asked at every other step only: in between its keys and values are missing, and what
    is in their place is as misleading as another request's."""

    def init_device(self) -> None:
        super().init_device()
        runner: Any = self.model_runner
        draft = runner.draft
        turns = itertools.cycle((False, True))

        runner.draft = lambda wanted: draft(wanted) if next(turns) else {}

    def compile_or_warm_up_model(self) -> Any:
        times = super().compile_or_warm_up_model()
        for cache in self.model_runner.kv_caches:
            cache.fill_(50.0)
        return times


class ForgetfulWorker(SkippingWorker):
    """And it does not catch up with what it has missed."""

    def init_device(self) -> None:
        super().init_device()
        DrafterCache.catch_up = lambda self, kept, rows: set(rows)  # type: ignore[method-assign]


class ConfidentWorker(CPUWorker):
    """Not a bug: it drafts only what the drafter states a survival for, token by token."""

    def init_device(self) -> None:
        super().init_device()
        runner: Any = self.model_runner
        draft = runner.draft

        def draft_if_stated(wanted: dict[str, int]) -> dict[str, tuple[list[int], list[float]]]:
            drafts: dict[str, tuple[list[int], list[float]]] = draft(wanted)
            return {r: both for r, both in drafts.items() if len(both[0]) == len(both[1])}

        runner.draft = draft_if_stated


class WrongRecoveryWorker(PrefersTheBestWorker):
    """After every rejection the most probable token is taken, not one that is sampled."""

    SHARE = 1.0


class StaleKeysWorker(CPUWorker):
    """Drafts are verified against a stale entry of the KV cache: the newest token's keys and values are not
    written in a step that has drafts."""

    def init_device(self) -> None:
        super().init_device()
        runner: Any = self.model_runner
        prepare = runner._prepare_inputs

        def leave_stale(scheduler_output: Any, *args: Any) -> Any:
            prepared = prepare(scheduler_output, *args)
            slots = runner.input_batch.block_table[0].slot_mapping.gpu
            for request in scheduler_output.scheduled_spec_decode_tokens:
                row = runner.input_batch.req_id_to_index[request]
                slots[int(runner.query_start_loc.np[row])] = -1
            return prepared

        runner._prepare_inputs = leave_stale


class PartedRanksWorker(CPUWorker):
    """The second rank has other draft tokens than the first."""

    def execute_model(self, scheduler_output: Any) -> Any:
        if self.rank:
            drafts = scheduler_output.scheduled_spec_decode_tokens
            vocab_size = self.model_config.get_vocab_size()
            for request, tokens in drafts.items():
                drafts[request] = [vocab_size - 1 - token for token in tokens]
        return super().execute_model(scheduler_output)


class Prophet(Proposer):
    """Knows what the target will write (`texts`: a JSON file of whole token lists), and says each token wrong
    with probability `wrong`, the same way each time it is asked at a place."""

    name = "prophet"

    def __init__(self, texts: str, wrong: float = 0.2) -> None:
        self._texts: list[list[int]] = json.loads(Path(texts).read_text())
        self._wrong = wrong
        self._known: dict[str, list[int]] = {}

    def observe(self, request_id: str, tokens: Any) -> None:
        self._known.setdefault(request_id, []).extend(tokens)

    def propose(self, wanted: Any) -> dict[str, Draft]:
        drafts = {}
        for request_id, most in wanted.items():
            known = self._known[request_id]
            place = len(known)
            for text in self._texts:
                if text[:place] == known:
                    wrong = np.random.default_rng(place).random(most) < self._wrong
                    told = [
                        (token + 1) % 64 if lie else token
                        for token, lie in zip(text[place : place + most], wrong.tolist(), strict=False)
                    ]
                    drafts[request_id] = Draft(told, [(1 - self._wrong) ** (j + 1) for j in range(len(told))])
        return drafts

    def forget(self, request_id: str) -> None:
        self._known.pop(request_id, None)
