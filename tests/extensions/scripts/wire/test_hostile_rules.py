"""Rules that are to freeze a server:

it answers others meanwhile, and goes on in the same process.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest
import requests

from tests.hostile.stressed_server import workers_of
from tests.running_server import RunningServer, running_server

CHAT = "/v1/chat/completions"
RULES = "/admin/script/rules"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("--seed", "1", "--max-model-len", "2000000") as server:
        yield server


def answered_beside_health(
    server: RunningServer, method: str, path: str, body: Any
) -> requests.Response:
    """The answer to a request, while health checks are answered on other connections."""
    workers = workers_of(server)
    with ThreadPoolExecutor(1) as pool:
        hostile = pool.submit(requests.request, method, server.url + path, json=body, timeout=50)
        while wait([hostile], timeout=0.05).not_done:
            assert requests.get(f"{server.url}/health", timeout=20).status_code == 200
        answer = hostile.result()
    assert workers_of(server) == workers
    return answer


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"then": {"text": "{{ message" + "|json" * 200 + " }}"}}, "must not be nested more than"),
        ({"then": {"text": "{{ 'a'" + "|json" * 90 + " }}"}}, "must not be nested more than"),
        ({"then": {"text": "{{ message }}" * 19_000}}, "more than 4000 tokens"),
        (
            {"when": {"message": {"regex": "a{65535}" * 400}}, "then": "pass"},
            "is too large: it has more than",
        ),
        (
            {"when": {"message": {"regex": "(?:a{140}){140}"}}, "then": "pass"},
            "is too large: it has more than",
        ),
    ],
)
def test_oversized_rules_are_rejected_immediately(
    server: RunningServer, rule: dict[str, Any], reason: str
) -> None:
    answer = answered_beside_health(server, "PUT", RULES, {"rules": [rule]})
    assert answer.status_code == 400
    assert "script at run time: rule 1" in answer.json()["error"]["message"]
    assert reason in answer.json()["error"]["message"]


def test_rules_after_slow_regexes_still_answer(
    server: RunningServer,
) -> None:
    slow = {"when": {"message": {"regex": "(a|aa)+$"}}, "then": {"text": "never"}}
    last = {"then": {"text": "the last rule"}}
    put = answered_beside_health(server, "PUT", RULES, {"rules": [slow] * 1_000 + [last]})
    assert put.status_code == 200
    body = {"messages": [{"role": "user", "content": "a" * 3_000 + "!"}]}
    answer = answered_beside_health(server, "POST", CHAT, body)
    assert answer.json()["choices"][0]["message"]["content"] == "the last rule"
    rows = requests.get(server.url + RULES, timeout=20).json()["rules"]
    assert [row["too_slow"] for row in rows] == [1] * 1_000 + [0]
    requests.delete(server.url + RULES, timeout=20)


def test_megabyte_message_is_matched_against_thousands_of_rules(server: RunningServer) -> None:
    rules: list[Any] = [
        {
            "when": {
                "message": {"contains": ["a" * 50 + f"{number}b"], "ignore_case": number % 2 == 0}
            },
            "then": {"text": "never"},
        }
        for number in range(2_000)
    ]
    put = requests.put(
        server.url + RULES, json={"rules": [*rules, {"then": {"text": "last"}}]}, timeout=50
    )
    assert put.status_code == 200
    prompt = {"prompt": "a" * 1_000_000, "max_tokens": 1}
    answer = answered_beside_health(server, "POST", "/v1/completions", prompt)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["text"].startswith("l")
    requests.delete(server.url + RULES, timeout=20)


def test_endless_templates_fail_only_their_request(server: RunningServer) -> None:
    text = "{% if message|upper|lower|title|json|upper %}{% endif %}" * 60
    put = requests.put(server.url + RULES, json={"rules": [{"then": {"text": text}}]}, timeout=50)
    assert put.status_code == 200
    body = {"messages": [{"role": "user", "content": '"' * 60_000}]}
    answer = answered_beside_health(server, "POST", CHAT, body)
    assert answer.status_code == 500
    assert "the rule's templates process more than" in answer.json()["error"]["message"]
    requests.delete(server.url + RULES, timeout=20)
