"""What a certificate may say: nothing is the same that was not shown to be."""

import copy
import json
import urllib.error
import urllib.request
from email.message import Message
from io import BytesIO
from typing import Any

import pytest

from slipstream.serving.client import Served
from slipstream.verify.certificate import VERDICTS, html, sentences
from slipstream.verify.checks import certificate, missing, verdict
from slipstream.verify.known_bad import CASES, check_known_bad


def cell(name: str = "temperature 1", verdict: str = "same", drafted: float = 50, **sampling: Any) -> Any:
    judged = {"draws": 1000, "p_value": 0.5, "variation": 0.01, "bound": 0.03}
    return {
        "name": name, "verdict": verdict, "draft_tokens": drafted, "accepted_tokens": drafted / 2,
        "sampling": sampling, "judgement": judged, "finds": 0.05,
    }  # fmt: skip


def feature(verdict: str) -> dict[str, Any]:
    return {
        "name": "a", "verdict": verdict, "compared": 3, "differing": 0, "draft_tokens": 9.0, "reported": "",
        "note": "",
    }  # fmt: skip


SOUND: dict[str, Any] = {
    "greedy": {
        "verdict": "equal", "drafted": 100, "accepted": 60, "compared": 4, "tokens": 99, "differences": [],
    },
    "logprobs": {"verdict": "equal", "compared": 99, "largest": 1e-5, "noise": 1e-5},
    "distribution": [cell(), cell("min-p 0.1", drafted=0, min_p=0.1)],
    "known_bad": [feature("equal"), feature("refused"), feature("not exercised")],
}  # fmt: skip


def changed(part: str, value: Any) -> dict[str, Any]:
    result = copy.deepcopy(SOUND)
    result[part] = value
    return result


def test_all_shown_is_the_same() -> None:
    assert verdict(SOUND) == "same"
    assert missing(SOUND) == []


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("greedy", SOUND["greedy"] | {"drafted": 0}),
        ("distribution", [cell(verdict="unclear")]),
        ("distribution", [cell(), cell(drafted=0)]),
        ("known_bad", [feature("refused"), feature("not exercised")]),
    ],
)
def test_what_shows_nothing_is_incomplete(part: str, value: Any) -> None:
    result = changed(part, value)
    assert verdict(result) == "incomplete"
    written = certificate(result, "m", "auto", [], 1.0)
    said = sentences(written)
    assert (said[0], said[1].startswith("Not shown: ")) == (VERDICTS["incomplete"], True)
    assert "Not shown" in html(written)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("greedy", SOUND["greedy"] | {"verdict": "differs", "drafted": 0}),
        ("known_bad", [feature("refused"), feature("failed")]),
        ("distribution", [cell(verdict="differs"), cell(verdict="unclear")]),
    ],
)
def test_a_difference_and_a_failure_outweigh_the_rest(part: str, value: Any) -> None:
    assert verdict(changed(part, value)) == "differs"


@pytest.mark.parametrize(
    ("speculative", "bare", "expected"),
    [(400, 200, "refused"), (500, 200, "failed"), (None, 200, "failed"), (200, 500, "not exercised")],
)
def test_refused_is_not_failed(
    speculative: int | None, bare: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses = {"speculative": speculative, "bare": bare}

    def answer(request: urllib.request.Request, timeout: float) -> BytesIO:
        server = request.full_url.split("/")[2]
        if request.full_url.endswith("/v1/models"):
            return BytesIO(json.dumps({"data": [{"id": "m", "max_model_len": 64}]}).encode())
        if request.full_url.endswith("/metrics"):
            return BytesIO(b"")
        if (status := statuses[server]) is None:
            raise ConnectionRefusedError
        if status != 200:
            raise urllib.error.HTTPError(request.full_url, status, "", Message(), BytesIO(b"why"))
        return BytesIO(json.dumps({"choices": [{"token_ids": [1, 2]}]}).encode())

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    case = next(case for case in CASES if case.name == "stop string")
    (found,) = check_known_bad(Served("http://bare"), Served("http://speculative"), [[1]], 0.0, [case])
    assert found.verdict == expected
