import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.errors import ConfigError
from slipstream.workloads.loading import SHIPPED, load_workload, load_workloads

LAYOUTS: dict[str, tuple[dict[str, Any], str]] = {
    "spec-bench": ({"question_id": 1, "category": "rag", "turns": ["first", "second"]}, "first"),
    "humaneval": ({"task_id": "HumanEval/0", "prompt": "def f():"}, "def f():"),
    "gsm8k": ({"question": "How many?", "answer": "2"}, "How many?"),
    "sharegpt": (
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
        "Hi",
    ),
    "messages": ({"messages": [{"role": "user", "content": "Hi"}]}, "Hi"),
    "prompt": ({"prompt": "Once"}, "Once"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, tmp_path: Path) -> None:
    row, expected = LAYOUTS[layout]
    file = tmp_path / "w.jsonl"
    file.write_text(json.dumps(row) + "\n\n" + json.dumps(row) + "\n")
    workload = load_workload(str(file), 32, "no-tokenizer-needed")
    assert workload.name == "w"
    assert len(workload.requests) == 2
    messages = workload.requests[0].messages
    assert messages is not None
    assert len(messages) == 1
    assert expected in messages[0]["content"]


def test_a_system_prompt_stays_and_answers_do_not(tmp_path: Path) -> None:
    turns = [("system", "Be brief."), ("human", "Hi"), ("gpt", "Hello"), ("human", "Bye")]
    file = tmp_path / "w.json"
    file.write_text(json.dumps([{"conversations": [{"from": f, "value": v} for f, v in turns]}]))
    assert load_workload(str(file), 8, "").requests[0].messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]


def test_compressed_and_by_category(tmp_path: Path) -> None:
    rows = [{"turns": [c], "category": c} for c in ("rag", "math", "rag")]
    file = tmp_path / "bench.jsonl.gz"
    file.write_bytes(gzip.compress("\n".join(json.dumps(r) for r in rows).encode()))
    workload = load_workload(f"{file}#rag", 8, "")
    assert workload.name == "bench-rag"
    assert len(workload.requests) == 2
    with pytest.raises(ConfigError, match="there are math, rag"):
        load_workload(f"{file}#chat", 8, "")


@pytest.mark.parametrize("name", SHIPPED)
def test_what_is_shipped(name: str) -> None:
    workload = load_workload(name, 48, "")
    assert len(workload.requests) == 24
    texts = [json.dumps(request.messages) for request in workload.requests]
    assert len(set(texts)) == 24


def test_schemas_go_into_the_requests() -> None:
    for workload, kind in (("json", "object"), ("tools", "array")):
        for request in load_workload(workload, 48, "").requests:
            assert request.body["response_format"]["json_schema"]["schema"]["type"] == kind
    assert not any(request.body for request in load_workload("chat", 48, "").requests)


def test_requests_come_round_again() -> None:
    workload = load_workload("chat", 48, "")
    again = workload.take(20, 8)
    assert again[:4] == list(workload.requests[20:])
    assert again[4:] == list(workload.requests[:4])


def test_two_files_of_one_name(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.jsonl").write_text(json.dumps({"prompt": folder}) + "\n")
    with pytest.raises(ConfigError, match="two workloads are named 'x'"):
        load_workloads([str(tmp_path / "a/x.jsonl"), str(tmp_path / "b/x.jsonl")], 8, "")


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not one of ours"):
        load_workload("chatt", 8, "")
    file = tmp_path / "w.jsonl"
    file.write_text('{"something": "else"}\n')
    with pytest.raises(ConfigError, match="no layout that is known"):
        load_workload(str(file), 8, "")
    file.write_text("not json\n")
    with pytest.raises(ConfigError, match="not JSON"):
        load_workload(str(file), 8, "")


def test_spread_limits_differ_around_the_same_mean() -> None:
    workload = load_workload("chat", 40, "")
    limits = [request.max_tokens for request in workload.spread(0.5).requests]
    assert min(limits) >= 20
    assert max(limits) <= 60
    assert len(set(limits)) > 15
    assert abs(sum(limits) / len(limits) - 40) < 2
    assert workload.spread(0.0) == workload
