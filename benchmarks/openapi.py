"""Read what Schemathesis sent to a server, and send what failed to another server. For reliability.py."""

import base64
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

# Left out of Schemathesis' checks are:
# - status_code_conformance: vLLM answers 404 and 501 where its schema does not list them;
# - response_headers_conformance, missing_required_header, ignored_auth: it lists no headers and no key;
# - negative_data_rejection, positive_data_acceptance: vLLM converts values of a wrong type, ignores fields it
#   does not know, and refuses some values that its schema allows (`n: 0`);
# - unsupported_method, allow_header_conformance: they look at the cases of a phase that has no bound;
# - those that look at sequences of requests: the schema links no operations.
CHECKS = ("not_a_server_error", "content_type_conformance", "response_schema_conformance")

# Changes the number of engines; all else is answered by 503 meanwhile. Others that stop or alter a server are
# there only if vLLM is told so at start: VLLM_SERVER_DEV_MODE, VLLM_ALLOW_RUNTIME_LORA_UPDATING, a profiler.
ALTERING = ("/scale_elastic_ep",)

REQUEST_SECONDS = 60
SHOWN_BYTES = 1000
NO_ANSWER = "no answer"


def command(executable: Path, url: str, key: str, examples: int, report: Path) -> list[str]:
    """Return the command that tries each operation of the server `examples` times."""
    options = {
        "header": f"Authorization: Bearer {key}",
        "checks": ",".join(CHECKS),
        "exclude-path": ALTERING[0],
        "phases": "examples,fuzzing",  # `coverage` makes every case that the schema defines: thousands
        "max-examples": examples,
        "seed": 0,
        "workers": 4,
        "request-timeout": REQUEST_SECONDS,
        "suppress-health-check": "all",
        "generation-database": "none",
        "output-sanitize": "false",  # requests are to be sent again as they were
        "report-ndjson-path": report,
    }
    given = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    return [
        str(executable),
        "run",
        f"{url}/openapi.json",
        "--continue-on-failure",
        "--no-shrink",
        "--no-color",
        *given,
    ]


@dataclass(frozen=True)
class Sent:
    operation: str
    method: str
    path: str
    headers: list[tuple[bytes, bytes]]
    body: bytes
    answer: str
    failed: list[str]
    """The checks that the answer did not pass."""


def kind_of(status: int, media_type: str, content: bytes) -> str:
    """Return what answers of one kind have in common: status, media type and the names of the fields."""
    try:
        fields = json.loads(content)
    except ValueError:
        fields = None
    names = ",".join(sorted(fields)) if isinstance(fields, dict) else ""
    return f"{status} {media_type.partition(';')[0]} {names}".strip()


def read_sent(events: Iterable[dict[str, Any]], url: str) -> Iterator[Sent]:
    """Yield the requests to the server at `url` of a report in Schemathesis' NDJSON."""
    for event in events:
        recorder = event.get("ScenarioFinished", {}).get("recorder", {})
        for case, interaction in recorder.get("interactions", {}).items():
            request, response = interaction["request"], interaction.get("response")
            checks = recorder.get("checks", {}).get(case, [])
            answer, failed = NO_ANSWER, [NO_ANSWER]
            if response:
                media_type = response["headers"].get("content-type", [""])[0]
                answer = kind_of(response["status_code"], media_type, decoded(response.get("content")))
                failed = [check["name"] for check in checks if check["status"] == "failure"]
            yield Sent(
                operation=recorder["label"],
                method=request["method"],
                path=request["uri"].removeprefix(url),
                headers=[
                    (name.encode("latin-1"), value.encode("latin-1"))
                    for name, values in request["headers"].items()
                    for value in values
                ],
                body=decoded(request.get("body")),
                answer=answer,
                failed=failed,
            )


def decoded(content: dict[str, str] | None) -> bytes:
    return base64.b64decode(content["$base64"]) if content else b""


def errors_of(events: Iterable[dict[str, Any]]) -> Counter[str]:
    """Count the operations that Schemathesis could not try to the end, by what went wrong."""
    found = (event["NonFatalError"] for event in events if "NonFatalError" in event)
    return Counter(f"{error['label']}: {error['value']['type']}" for error in found)


async def fails_only_here(failed: Iterable[Sent], here: str, bare: str) -> list[dict[str, Any]]:
    """Return the requests that bare vLLM answers in another way than the server here did."""
    found = []
    async with httpx.AsyncClient(timeout=REQUEST_SECONDS) as client:
        for sent in failed:
            theirs = await repeat(client, sent, bare)
            if theirs != sent.answer:
                again = await repeat(client, sent, here)
                found.append({
                    "request": f"{sent.method} {sent.path}",
                    "body": sent.body[:SHOWN_BYTES].decode(errors="replace"),
                    "failed": sent.failed,
                    "answers": {"ours": sent.answer, "ours again": again, "bare vLLM's": theirs},
                })  # fmt: skip
    return found


async def repeat(client: httpx.AsyncClient, sent: Sent, url: str) -> str:
    try:
        answer = await client.request(
            sent.method, url + sent.path, headers=sent.headers, content=sent.body or None
        )
    except (httpx.HTTPError, httpx.InvalidURL):
        return NO_ANSWER
    return kind_of(answer.status_code, answer.headers.get("content-type", ""), answer.content)


async def open_operations(url: str) -> list[str]:
    """Return the operations of a server that answer without its key, but for those that alter it."""
    async with httpx.AsyncClient(base_url=url, timeout=REQUEST_SECONDS) as client:
        schema = (await client.get("/openapi.json")).json()
        operations = [
            (method.upper(), path)
            for path, methods in schema["paths"].items()
            for method in methods
            if path not in ALTERING
        ]
        return [
            f"{method} {path}"
            for method, path in operations
            if (await client.request(method, path, json={})).status_code != 401
        ]
