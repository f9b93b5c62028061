"""Send three kinds of requests to a running server, and show what speculation makes of each:

slipstream serve MODEL &
python examples/traffic.py --requests 8 --at-once 4

OPENAI_API_KEY in the environment is the server's key, if it has one.
"""

import argparse
import json
import os
import re
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from openai import OpenAI

LETTER = (
    "Dear neighbours, the path along the river is closed from Monday to Friday, because the railing near the "
    "old mill is being replaced. Please use the bridge by the school. We expect the work to be finished on "
    "Friday at noon; if it rains, it will take one day longer."
)
DAYS = ("Tuesday", "Wednesday", "Thursday", "Saturday")
CITIES = ("Bergen", "Lisbon", "Osaka", "Quito")
TOPICS = ("bread", "rivers", "clocks", "bees")
CALL = {
    "type": "object",
    "properties": {
        "name": {"enum": ["get_weather", "get_forecast"]},
        "arguments": {
            "type": "object",
            "properties": {"location": {"type": "string", "maxLength": 20}, "days": {"type": "integer"}},
            "required": ["location", "days"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "arguments"],
    "additionalProperties": False,
}


def edit(number: int) -> dict[str, Any]:
    """Ask for an answer that repeats most of the prompt, which lookup drafts."""
    day = DAYS[number % len(DAYS)]
    return {"content": f"Replace Monday by {day} and repeat the rest of the text as it is.\n\n{LETTER}"}


def chat(number: int) -> dict[str, Any]:
    """Ask for new text, for which lookup has little to offer."""
    return {"content": f"Tell me something surprising about {TOPICS[number % len(TOPICS)]}."}


def tool_call(number: int) -> dict[str, Any]:
    """Ask for JSON by a schema, of which the grammar drafts what can only be so."""
    schema = {"type": "json_schema", "json_schema": {"name": "call", "schema": CALL}}
    city = CITIES[number % len(CITIES)]
    content = f"Call get_weather or get_forecast, as JSON: what will the weather be in {city} for 3 days?"
    return {"content": content, "response_format": schema}


def send(client: OpenAI, model: str, max_tokens: int, content: str, **more: Any) -> int:
    """Return the number of tokens of the answer."""
    messages = [{"role": "user", "content": content}]
    answer = client.chat.completions.create(
        model=model, messages=messages, max_tokens=max_tokens, temperature=0, **more
    )
    return int(answer.usage.completion_tokens)


def count_drafts(url: str) -> tuple[float, float]:
    """Return (draft tokens, those accepted) since the server's start; zeros if it does not speculate."""
    with urllib.request.urlopen(url.removesuffix("/v1") + "/metrics", timeout=10) as answer:
        text = answer.read().decode()
    counted = []
    for name in ("draft", "accepted"):
        lines = re.findall(rf"^vllm:spec_decode_num_{name}_tokens_total\S* (\S+)$", text, re.MULTILINE)
        counted.append(sum(map(float, lines)))
    return counted[0], counted[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://localhost:8000/v1")
    parser.add_argument("--requests", type=int, default=8, help="of each kind")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=96)
    options = parser.parse_args()
    client = OpenAI(base_url=options.url, api_key=os.environ.get("OPENAI_API_KEY", "EMPTY"))
    model = client.models.list().data[0].id
    for kind in (edit, chat, tool_call):
        before, begun = count_drafts(options.url), time.monotonic()
        with ThreadPoolExecutor(options.at_once) as pool:
            asked = [kind(number) for number in range(options.requests)]
            tokens = sum(pool.map(lambda request: send(client, model, options.max_tokens, **request), asked))
        seconds = time.monotonic() - begun
        drafted, accepted = (
            after - earlier for after, earlier in zip(count_drafts(options.url), before, strict=True)
        )
        found = {
            "requests": options.requests, "tokens": tokens, "tokens per second": round(tokens / seconds, 1),
            "draft tokens": int(drafted), "accepted": int(accepted),
        }  # fmt: skip
        print(f"{kind.__name__}: {json.dumps(found)}")


if __name__ == "__main__":
    main()
