"""Scripted replies to plain chats are answered and counted as on the general path."""

import re
from pathlib import Path
from typing import Any

import requests

from tests.extensions.scripts.wire.test_server import GENERAL, answer_body, journal
from tests.hostile.raw_client import Wire, get, requests_by_way
from tests.running_server import RunningServer, running_server
from tests.waits import wait_for_metric

RULES = """
rules:
- when: {message: {contains: limited}}
  times: 3
  then: {text: It is said again and again.}
- when: {message: {contains: filtered}, headers: {x-test: b}}
  then: {text: "A \\"word\\" of é.", finish_reason: content_filter}
- when: {message: {contains: thought}}
  then: {text: The answer., reasoning: The thoughts.}
- when: {message: {contains: slow}}
  then: {text: A reply of several words., delays: {first_token: 1ms}}
- when: {message: {contains: counted}}
  then: {text: A reply of several words., usage: {prompt_tokens: 7}}
- when: {message: {contains: called}}
  then: {tool_calls: [{name: f, unchecked: true}]}
- when: {message: {contains: passed}}
  then: pass
- when: {message: {role: system, exact: be brief}, turn: {at_most: 1}}
  then: {text: ""}
"""
CONVERSATIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    *[("limited", {"max_tokens": 40})] * 5,
    *[("limited 2", {"max_tokens": 40})] * 2,
    *[("filtered", {"max_tokens": limit}) for limit in (2, 2, 2, 40, 40, 40)],
    *[('filtered "twice"', {"seed": 1, "temperature": 0})] * 3,
    *[("filtered", {"stop": "word"})] * 3,
    *[("filtered", {"stream": True})] * 3,
    *[("filtered", {"logprobs": True, "max_tokens": 9})] * 3,
    *[(f"{kind} on", {"max_tokens": 40}) for kind in ("thought", "slow", "counted", "called")] * 3,
    *[("passed on", {"max_tokens": 40, "seed": 3})] * 3,
    *[("nothing", {"min_tokens": 2, "max_tokens": 3, "ignore_eos": True})] * 3,
)
COUNTED = re.compile(r"vllm:\w+_(count|total|tokens_sum)\{")
"""Samples that do not depend on times, but for those of iterations."""


def counts(server: RunningServer) -> list[str]:
    lines = get(server.port, "/metrics").body.decode().splitlines()
    return [line for line in lines if COUNTED.match(line) and "iteration" not in line]


def test_fast_path_answers_and_counts_scripted_chats_like_the_general_path(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(RULES)
    results: list[Any] = []
    for way, headers in {"fast": {}, "flask": GENERAL}.items():
        with running_server("--script", str(path), "--seed=5") as server:
            answers = [answer_body(server, *chat, headers) for chat in CONVERSATIONS]
            report = requests.get(server.url + "/admin/script", timeout=20).json()
            results.append((answers, report, journal(server), counts(server)))
            assert requests_by_way(server.port)[way] == len(CONVERSATIONS)
    for fast, general in zip(*results, strict=True):
        assert fast == general
    assert len(results[0][3]) > 10


def test_changed_rule_decides_the_next_reply_on_the_fast_path(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("rules: [{then: {text: old}}]")
    with running_server("--script", str(path)) as server:
        for _ in range(3):
            assert '"old"' in answer_body(server, "hello", {}, {})
        rule = {"then": {"text": "new"}}
        requests.put(server.url + "/admin/script/rules", json=rule, timeout=20).raise_for_status()
        for _ in range(3):
            assert '"new"' in answer_body(server, "hello", {}, {})
        assert requests_by_way(server.port)["fast"] == 6


def test_scripted_reply_waits_while_the_server_is_paused(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("rules: [{then: {text: old}}]")
    with running_server("--script", str(path), "--server-dev-mode") as server:
        for _ in range(3):
            assert '"old"' in answer_body(server, "hello", {}, {})
        requests.post(server.url + "/pause", timeout=20).raise_for_status()
        with Wire(server.port) as wire:
            message = {"role": "user", "content": "hello"}
            wire.post({"messages": [message]}, "/v1/chat/completions")
            wait_for_metric(server.port, "vllm:num_requests_waiting", 1)
            requests.post(server.url + "/resume", timeout=20).raise_for_status()
            assert wire.answer().json()["choices"][0]["message"]["content"] == "old"
