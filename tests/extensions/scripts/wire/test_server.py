"""A real server with scripts: how it starts, reads them again, and ends."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import psutil
import requests

from tests.config.wire.test_headless import listening_ports
from tests.hostile.raw_client import requests_by_way, wait_until
from tests.running_server import RunningServer, running_gunicorn, running_server
from tests.waits import wait_for_log

RULES = """
rules:
- when: {message: {contains: weather, ignore_case: true}}
  then: {text: It rains., usage: {prompt_tokens: 7}}
- when: {message: {contains: third}, nth: [3]}
  then: {json: {times: 3}}
- when: {message: {role: system, exact: be brief}, headers: {x-test: a}}
  then: {text: Brief., finish_reason: length}
- when: {model: other}
  then: {text: Other.}
- when: {message: {contains: think}}
  then: {reasoning: Hm., text: Done., delays: {first_token: 20ms}}
- when: {message: {contains: perhaps}, chance: 0.5}
  then: {text: Yes.}
- when: {message: {contains: call}}
  then: {tool_calls: [{name: f, arguments: {a: 1}, unchecked: true}]}
"""
REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("What is the WEATHER?", {}),
    ("the weather", {"stream": True, "stream_options": {"include_usage": True}}),
    ("the weather", {"max_tokens": 2}),
    ("weather", {"stop": "rain"}),
    ("weather", {"logprobs": True, "top_logprobs": 2, "max_tokens": 9}),
    *[("the third time", {}) for _ in range(4)],
    ("think", {}),
    ("think", {"stream": True}),
    *[("perhaps", {"seed": seed}) for seed in range(6)],
    *[("perhaps", {}) for _ in range(4)],
    ("call", {}),
    ("call", {"stream": True}),
    ("nothing of all that", {"max_tokens": 5}),
)
GENERAL = {"TE": "trailers"}
"""A header without a meaning here, whose requests go through Flask."""


def reply_text(server: RunningServer, text: str = "hello", **fields: Any) -> Any:
    """The text of an answer; its status when it is an error."""
    headers = fields.pop("headers", None)
    body = {"messages": [{"role": "user", "content": text}], **fields}
    answer = requests.post(
        server.url + "/v1/chat/completions", json=body, headers=headers, timeout=20
    )
    if answer.status_code != 200:
        return answer.status_code
    return answer.json()["choices"][0]["message"]["content"]


def wait_for_reply(server: RunningServer, text: str) -> None:
    """Sends chats until the reply is this text."""

    def is_reply_changed() -> bool:
        return bool(reply_text(server) == text)

    wait_until(is_reply_changed)


def wait_for_way(server: RunningServer, way: str) -> None:
    """Sends chats until one is served in this way."""

    def is_way_taken() -> bool:
        return way_of_next_chat(server) == way

    wait_until(is_way_taken)


def test_changed_script_file_is_reloaded_unless_it_is_invalid(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("rules: [{then: {text: old}}, {then: {text: never}}]")
    with running_server("--script", str(path)) as server:
        assert reply_text(server) == "old"
        path.write_text("rules: [{then: {text: new}}, {then: {text: never}, name: unused}]")
        wait_for_reply(server, "new")
        path.write_text("rules: [{then: {text: 5}}]")
        message = "then.text: Expected `str | null`, got `int`; keeping the old rules"
        wait_for_log(server, message)
        server.process.send_signal(signal.SIGHUP)
        wait_for_log(server, "reload rejected; keeping the old configuration: setting script")
        assert reply_text(server) == "new"
        path.write_text("rules: [{then: {text: newest}}, {then: {text: never}, name: unused}]")
        server.process.send_signal(signal.SIGHUP)
        wait_for_reply(server, "newest")
        assert server.stop() == 0
        assert re.search(r"1 of 2 rules never answered: rule 2 \(unused\)", server.log())


def test_script_report_can_include_all_ranks(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("rules: [{then: {text: a}}]")
    with running_gunicorn(
        env={"SIM_SCRIPT": str(path), "SIM_DATA_PARALLEL_SIZE": "2"}, ports=2
    ) as server:
        reply_text(server)

        def answered(method: str) -> dict[str, int]:
            reports = requests.request(
                method, f"{server.url}/admin/script?ranks=all", timeout=10
            ).json()
            return {
                rank: report["files"][0]["rules"][0]["answered"] for rank, report in reports.items()
            }

        assert answered("GET") == {"0": 1, "1": 0}
        assert answered("DELETE") == {"0": 0, "1": 0}


def processes_of_rank(server: RunningServer, rank: int) -> list[int]:
    """Returns the processes that listen only at the port of a rank."""
    return [
        child.pid
        for child in psutil.Process(server.process.pid).children()
        if listening_ports(child.pid) == {server.port + rank}
    ]


def test_error_for_an_unresponsive_rank_lists_ranks_that_accepted_rules() -> None:
    rule = {"name": "greet", "then": {"text": "Hello."}}
    with running_gunicorn(env={"SIM_DATA_PARALLEL_SIZE": "3"}, ports=3) as server:
        # The port of rank 0 answers before the other ranks have closed the listeners of their peers.

        def has_rank_one_process() -> bool:
            return len(processes_of_rank(server, 1)) == 1

        wait_until(has_rank_one_process)
        [stopped] = processes_of_rank(server, 1)
        os.kill(stopped, signal.SIGSTOP)
        try:
            url = f"{server.url}/admin/script/rules"
            answer = requests.post(f"{url}?ranks=all", json=rule, timeout=20)
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert answer.status_code == 503
        message = answer.json()["error"]["message"]
        assert message.startswith("Rank 1 does not respond: ")
        assert message.endswith(" Accepted by rank: 0, 2.")
        last = requests.get(f"http://127.0.0.1:{server.port + 2}/admin/script/rules", timeout=20)
        assert [row["name"] for row in last.json()["rules"]] == ["greet"]


def test_rules_give_the_same_replies_on_the_fast_and_general_paths(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(RULES)
    answers: list[list[str]] = []
    reports: list[Any] = []
    for headers in ({}, GENERAL):
        with running_server(
            "--script", str(path), "--seed", "5", env={"SIM_FAST_PATH": "true"}
        ) as server:
            answers.append([answer_body(server, *request, headers) for request in REQUESTS])
            reports.append(
                [
                    requests.get(server.url + "/admin/script", timeout=20).json(),
                    journal(server),
                ]
            )
            metrics = requests.get(server.url + "/metrics", timeout=20).text
            way = "flask" if headers else "fast"
            assert f'understudy_requests_total{{way="{way}"}} {len(REQUESTS)}.0' in metrics
    assert answers[0] == answers[1]
    assert reports[0] == reports[1]


def answer_body(server: RunningServer, text: str, fields: Any, headers: dict[str, str]) -> str:
    """Returns the answer's body without times."""
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": text}]
    answer = requests.post(
        server.url + "/v1/chat/completions",
        json={"messages": messages, **fields},
        headers={"X-Request-Id": text, "X-Test": "b", **headers},
        timeout=20,
    )
    return re.sub(r'"created":\d+', "", answer.text)


def journal(server: RunningServer) -> list[dict[str, Any]]:
    """Returns the entries without their times."""
    moments = ("arrived_s", "queued_s", "scheduled_s", "first_s", "last_s", "sends_s")
    entries = requests.get(server.url + "/admin/journal", timeout=20).json()["entries"]
    return [{**entry, "at": "", **dict.fromkeys(moments)} for entry in entries]


def test_script_with_template_replies_disables_the_fast_path(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("rules: [{then: {text: constant}}]")
    with running_server("--script", str(path), env={"SIM_FAST_PATH": "true"}) as server:
        assert reply_text(server) == "constant"
        assert way_of_next_chat(server) == "fast"
        path.write_text("rules: [{then: {text: '{{ message }}!'}}]")
        wait_for_reply(server, "hello!")
        wait_for_way(server, "direct")
        path.write_text("rules: [{then: {text: constant again}}]")
        wait_for_reply(server, "constant again")
        wait_for_way(server, "fast")


def way_of_next_chat(server: RunningServer) -> str:
    """Returns how a chat is served."""
    counts_before = requests_by_way(server.port)
    reply_text(server)
    counts_after = requests_by_way(server.port)
    counts_after["direct"] -= 1  # the first request for metrics
    [way] = [way for way in counts_after if counts_after[way] > counts_before[way]]
    return way
