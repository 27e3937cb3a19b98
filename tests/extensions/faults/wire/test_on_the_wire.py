"""Every fault as a client sees it, byte by byte; hundreds of them leave nothing behind."""

import json
import os
import random
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import requests

from tests.extensions.faults.client import CHAT, PATHS, TEXT, TOKENS, Asker, Got, ask, got, question
from tests.hostile.raw_client import get, running, wait_until
from tests.hostile.stressed_server import stressed_server, workers_of
from tests.hostile.waits import wait_for_running
from tests.running_server import RunningServer, running_server

DONE = "data: [DONE]"
HI = [{"role": "user", "content": "hi"}]
every_path = pytest.mark.parametrize("path", PATHS)
every_version = pytest.mark.parametrize("version", ["1.0", "1.1"])


def is_json(chunk: str) -> bool:
    try:
        json.loads(chunk.removeprefix("data: "))
    except ValueError:
        return False
    return True


@every_path
@every_version
@pytest.mark.parametrize("after", [1, 4])
def test_stream_is_aborted_after_the_configured_number_of_chunks(
    faulty: RunningServer, path: str, version: str, after: int
) -> None:
    if version == "1.0":  # where nothing but a reset tells a break from the end
        with pytest.raises(ConnectionResetError):
            got(faulty.port, path, True, f"disconnect; after={after}", version=version)
        return
    answer = got(faulty.port, path, True, f"disconnect; after={after}", version=version)
    assert answer.status == 200 and len(answer.chunks) == after
    assert all(map(is_json, answer.chunks)) and answer.body.endswith(b"\n\n")
    assert not answer.whole


@every_path
@pytest.mark.parametrize("stream", [True, False])
def test_disconnect_fault_closes_the_connection_without_a_full_response(
    faulty: RunningServer, path: str, stream: bool
) -> None:
    assert ask(faulty.port, path, stream, "disconnect") is None
    if not stream:
        answer = got(faulty.port, path, False, "disconnect; after=1")
        assert answer.status == 200 and not answer.whole and not is_json(answer.body.decode())
        assert 0 < len(answer.body) < int(answer.headers["content-length"])


@every_path
@every_version
def test_faults_that_shorten_a_stream_end_it_without_an_error(
    faulty: RunningServer, path: str, version: str
) -> None:
    usual = got(faulty.port, path, True, "disconnect; after=100", version=version)
    assert usual.whole and usual.chunks[-1] == DONE and len(usual.chunks) > TOKENS
    answer = got(faulty.port, path, True, "truncate; after=2", version=version)
    assert answer.whole and len(answer.chunks) == 2 and all(map(is_json, answer.chunks))
    answer = got(faulty.port, path, True, "truncated-json; chunk=3", version=version)
    assert answer.whole and len(answer.chunks) == 2 and all(map(is_json, answer.chunks))
    tail = answer.body.rpartition(b"\n\n")[2].decode()
    assert tail.startswith("data: {") and not is_json(tail)
    answer = got(faulty.port, path, True, "missing-done", version=version)
    assert (
        answer.whole and DONE not in answer.chunks and len(answer.chunks) == len(usual.chunks) - 1
    )
    assert (
        json.loads(answer.chunks[-1].removeprefix("data: "))["choices"][0]["finish_reason"]
        == "length"
    )


@every_path
@pytest.mark.parametrize("action", ["truncated-json", "truncate"])
def test_truncated_response_has_a_matching_content_length(
    faulty: RunningServer, path: str, action: str
) -> None:
    answer = got(faulty.port, path, False, action)
    assert answer.status == 200 and answer.whole and answer.body.startswith(b"{")
    assert not is_json(answer.body.decode()) and len(answer.body) == int(
        answer.headers["content-length"]
    )


@every_path
def test_malformed_chunk_fault_corrupts_exactly_one_chunk(faulty: RunningServer, path: str) -> None:
    answer = got(faulty.port, path, True, "malformed-chunk; chunk=3")
    assert answer.whole and answer.chunks[-1] == DONE
    broken = [number for number, chunk in enumerate(answer.chunks[:-1], 1) if not is_json(chunk)]
    assert broken == [3] and answer.chunks[2].startswith("data: ")


@every_path
@pytest.mark.parametrize("stream", [True, False])
def test_empty_and_error_faults_replace_the_response(
    faulty: RunningServer, path: str, stream: bool
) -> None:
    answer = got(faulty.port, path, stream, "empty")
    assert (answer.status, answer.body, answer.whole) == (200, b"", True)
    assert answer.headers["content-type"].startswith(
        "text/event-stream" if stream else "application/json"
    )
    answer = got(
        faulty.port, path, stream, "error; status=503; retry_after=7; type=Busy; message=come later"
    )
    assert answer.status == 503 and answer.headers["retry-after"] == "7"
    expected_error = {"message": "come later", "type": "Busy", "param": None, "code": 503}
    assert json.loads(answer.body) == {"error": expected_error}
    returned = got(faulty.port, path, stream, X_Return_Error="422")
    error = json.loads(returned.body)["error"]
    assert (returned.status, error["code"], error["type"]) == (422, 422, "UnprocessableEntityError")
    assert got(faulty.port, path, stream, X_Return_Error="oops").status == 400
    assert got(faulty.port, path, stream, "explode").status == 400


def test_fault_rule_applies_only_to_the_named_api_and_headers(
    faulty: RunningServer,
) -> None:
    def change(**settings: Any) -> None:
        requests.post(f"{faulty.url}/admin/config", json=settings, timeout=20).raise_for_status()

    rules = [
        {"action": "error", "status": 503, "api": "completions", "every": 2},
        {"action": "disconnect", "after": 2, "headers": {"X-Team": "chaos"}},
    ]
    change(**{"fault-rules": rules})
    try:
        assert [got(faulty.port, TEXT, False).status for _ in range(4)] == [200, 503, 200, 503]
        assert [got(faulty.port, CHAT, False).status for _ in range(2)] == [200] * 2
        broken = got(faulty.port, CHAT, True, X_Team="chaos")
        assert not broken.whole and len(broken.chunks) == 2
        assert got(faulty.port, CHAT, True, X_Team="order").whole
        types = ["rate_limit", "model_not_found"]
        change(**{"fault-rules": None, "failure-injection-rate": 100, "failure-types": types})
        answers = [got(faulty.port, path, False) for path in PATHS for _ in range(12)]
        assert {answer.status for answer in answers} == {429, 404}
        assert get(faulty.port, "/v1/models").status == 200
    finally:
        change(**{"fault-rules": None, "failure-injection-rate": 0, "failure-types": []})


def test_injected_errors_are_raised_before_the_model_check(
    faulty: RunningServer,
) -> None:
    with Asker(faulty.port) as asker:
        unknown = question(TEXT, False, model="nobody")
        answer = asker.send(TEXT, unknown, X_Return_Error="502").answer()
        assert answer and answer.status == 502
        answer = asker.send(TEXT, {"prompt": 5}, X_Return_Error="502").answer()
        assert answer and answer.status == 400
        answer = asker.send(TEXT, unknown, X_Fault="disconnect").answer()
        assert answer and answer.status == 404
        for path, body in (
            ("/tokenize", {"prompt": "hi"}),
            ("/v1/messages/count_tokens", {"model": "understudy-tiny", "messages": HI}),
            ("/v1/chat/completions/render", {"model": "understudy-tiny", "messages": HI}),
        ):
            answer = asker.send(path, body, X_Fault="error", X_Return_Error="500").answer()
            assert answer and answer.status == 200, "only requests for generation go wrong"


def test_connection_stays_open_after_every_fault_except_disconnect(
    faulty: RunningServer,
) -> None:
    faults = ("truncate; after=2", "truncated-json", "empty", "missing-done", "error; status=503")
    with Asker(faulty.port) as asker:
        for fault in faults:
            for stream in (True, False):
                assert asker.send(CHAT, question(CHAT, stream), X_Fault=fault).answer()
        last = asker.send(CHAT, question(CHAT, True)).answer()
        assert last and last.chunks[-1] == DONE
    for fault in ("disconnect", "disconnect; after=2"):
        with Asker(faulty.port) as asker:
            asker.send(CHAT, question(CHAT, True), X_Fault=fault).answer()
            assert asker.is_closed()


def test_rate_limit_fault_rejects_excess_requests_with_quota_headers(
    faulty: RunningServer,
) -> None:
    fault = "rate-limit; rate=0.5; burst=2; name=quota"
    with Asker(faulty.port) as asker:
        answers = [
            asker.send(TEXT, question(TEXT, False), X_Fault=fault).answer() for _ in range(3)
        ]
    header_sets = [answer.headers for answer in answers if answer]
    assert [answer.status for answer in answers if answer] == [200, 200, 429]
    assert [headers["x-ratelimit-remaining-requests"] for headers in header_sets] == ["1", "0", "0"]
    assert {headers["x-ratelimit-limit-requests"] for headers in header_sets} == {"2"}
    assert 110 <= int(header_sets[2]["retry-after"]) <= 120 and header_sets[2][
        "x-ratelimit-reset-requests"
    ].startswith("3m5")
    assert json.loads(answers[2].body)["error"]["type"] == "RateLimitError"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fault", "seen"), [("slow-first-token; seconds=3600", 0), ("stall; seconds=3600; after=3", 3)]
)
def test_stalled_request_delays_no_other_request(
    faulty: RunningServer, fault: str, seen: int
) -> None:
    with Asker(faulty.port) as asker:
        asker.send(TEXT, question(TEXT, True), X_Fault=fault)
        received = b""
        while received.count(b"data: ") < seen or b"\r\n\r\n" not in received:
            received += asker.sock.recv(65536)
        wait_for_running(faulty.port, 1)
        for path in PATHS:
            assert got(faulty.port, path, True).chunks[-1] == DONE
        assert running(faulty.port) == 1 and received.count(b"data: ") == seen
    wait_for_running(faulty.port, 0)


MESSAGES = "/v1/messages"
GENERATE = "/inference/v1/generate"
BATCH = "/v1/chat/completions/batch"
STOP = "event: message_stop"


def of_family(server: RunningServer, path: str, stream: bool, fault: str) -> Got:
    body = {
        MESSAGES: {
            "model": "understudy-tiny",
            "messages": HI,
            "max_tokens": TOKENS,
            "stream": stream,
        },
        GENERATE: {
            "token_ids": [1, 2],
            "sampling_params": {"max_tokens": TOKENS},
            "stream": stream,
        },
        BATCH: {"messages": [HI, HI], "max_tokens": TOKENS},
    }[path]
    with Asker(server.port) as asker:
        answer = asker.send(path, body, X_Fault=fault).answer()
        assert answer is not None
        return answer


def test_faults_injected_into_the_messages_api_keep_the_anthropic_format(
    faulty: RunningServer,
) -> None:
    usual = of_family(faulty, MESSAGES, True, "missing-done; nth=9")
    answer = of_family(faulty, MESSAGES, True, "missing-done")
    assert usual.chunks[-1].startswith(STOP)
    assert answer.whole and answer.chunks[-1].startswith("event: message_delta")
    answer = of_family(faulty, MESSAGES, True, "malformed-chunk; chunk=3")
    name, data = answer.chunks[2].split("\n")
    assert name.startswith("event: content_block_") and data.startswith("data: }{")
    assert answer.chunks[-1].startswith(STOP)
    answer = of_family(faulty, MESSAGES, False, "error; status=429; retry_after=3; message=later")
    assert (answer.status, answer.headers["retry-after"]) == (429, "3")
    error = {"type": "RateLimitError", "message": "later"}
    assert json.loads(answer.body) == {"type": "error", "error": error}


@pytest.mark.parametrize("path", [MESSAGES, GENERATE, BATCH])
def test_faults_apply_to_messages_generate_and_batch_routes(
    faulty: RunningServer, path: str
) -> None:
    if path != BATCH:
        broken = of_family(faulty, path, True, "disconnect; after=2")
        assert not broken.whole and len(broken.chunks) == 2
        early = of_family(faulty, path, True, "truncate; after=2")
        assert early.whole and len(early.chunks) == 2
    assert of_family(faulty, path, False, "empty").body == b""
    cut = of_family(faulty, path, False, "truncated-json")
    assert cut.whole and cut.body.startswith(b"{") and not cut.body.endswith(b"}")
    assert of_family(faulty, path, False, "error; status=418").status == 418


FAULTS = (
    *(
        "disconnect",
        "disconnect; after=1",
        "disconnect; after=4",
        "truncate; after=3",
        "truncated-json",
    ),
    *(
        "malformed-chunk; chunk=2",
        "missing-done",
        "empty",
        "error; status=503",
        "rate-limit; rate=600",
    ),
    *("stall; seconds=0.02; after=2", "slow-first-token; seconds=0.02", ""),
)
REQUESTS = 400
CLIENT = "address:127.0.0.1"


def test_slots_and_connections_are_freed_after_hundreds_of_faults() -> None:
    """Four places, so that one that is lost is soon missed."""
    with stressed_server("--max-num-seqs", "4", "--inter-token-latency", "1ms") as server:
        draw = random.Random(3)
        wanted = [
            (
                draw.choice(PATHS),
                draw.random() < 0.8,
                draw.choice(FAULTS),
                draw.choice(("1.0", "1.1")),
            )
            for _ in range(REQUESTS)
        ]
        with ThreadPoolExecutor(8) as clients:
            list(clients.map(lambda arguments: ask_and_be_cut(server.port, *arguments), wanted))
        wait_for_running(server.port, 0)
        (worker,) = workers_of(server)
        files_before = open_files(worker)
        for _ in range(100):
            ask(server.port, PATHS[0], True, "disconnect; after=1")
        wait_until(lambda: open_files(worker) <= files_before)
        assert all(got(server.port, path, True).chunks[-1] == "data: [DONE]" for path in PATHS)


def ask_and_be_cut(port: int, path: str, stream: bool, fault: str, version: str) -> None:
    with suppress(ConnectionResetError):  # so a stream of HTTP/1.0 breaks off
        ask(port, path, stream, fault, version=version)


def open_files(process: int) -> int:
    return len(os.listdir(f"/proc/{process}/fd"))


def test_client_disconnect_from_a_faulty_stream_frees_the_slot() -> None:
    rules = [{"action": "malformed-chunk", "chunk": 2}]
    slow = ("--inter-token-latency", "50ms", "--fault-rules", json.dumps(rules))
    with stressed_server("--max-num-seqs", "2", *slow) as server:
        for version in ("1.0", "1.1"):
            for _ in range(6):
                with Asker(server.port) as asker:
                    asker.send(PATHS[0], question(PATHS[0], True, max_tokens=2000), version)
                    received = b""
                    while b"}{" not in received:
                        received += asker.sock.recv(65536)
            wait_for_running(server.port, 0)
        # A place is free a moment before it is known whose fault it was.
        wait_until(
            lambda: (
                get(server.port, "/admin/verdict").json()["clients"][CLIENT]["disconnects"] == 12
            )
        )
        assert get(server.port, "/admin/verdict").json()["clean"] is True


def test_disconnect_fault_closes_a_tls_connection() -> None:
    with running_server("--self-signed-certs") as server:
        with Asker(server.port, tls=True) as asker:
            asker.send(CHAT, question(CHAT, True), X_Fault="disconnect; after=3")
            received = b""
            with pytest.raises(ssl.SSLEOFError):  # a TLS connection that ends well says so
                while data := asker.sock.recv(65536):
                    received += data
            assert received.count(b"data: ") == 3 and not received.endswith(b"0\r\n\r\n")
        with Asker(server.port, tls=True) as asker:
            asker.send(CHAT, question(CHAT, True), X_Fault="disconnect")
            assert asker.is_closed()
