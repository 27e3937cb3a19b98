"""Requests without a key get no answer of a recording or a target, on any route."""

import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import msgspec
import pytest

from app.core.server.middleware.api_keys import GUARDED_PREFIXES
from app.extensions.recording.exchange import Exchange, RecordedRequest
from app.extensions.recording.replay import EXCLUDED_PREFIXES, RELAYED_PREFIXES
from scripts.surface import CONFIGURATIONS, is_flag, routes
from tests.application import app_of
from tests.extensions.recording.recordings import JSON_HEADERS, exchange, exchanges_of, written
from tests.hostile.raw_client import wait_until
from tests.http_server import Handler, serving
from tests.running_server import RunningServer, running_server

KEY = "key-of-the-test"
TARGET_KEY = "key-of-the-operator"
TARGET_ANSWER = b'{"from": "the target"}'
RECORDED_ANSWER = b'{"from": "the recording"}'
VARIABLE = re.compile(r"<[^>]+>")
UNAUTHENTICATED: Sequence[Mapping[str, str]] = (
    {},
    {"Authorization": "Bearer wrong-key"},
    {"X-Api-Key": KEY},
    {"Authorization": f"Basic {KEY}"},
)
AUTHENTICATED = {"Authorization": f"Bearer {KEY}"}
OPEN_PATHS = (
    *("/score", "/rerank", "/pooling", "/classify", "/tokenize", "/detokenize"),
    "/score_completions",
)
"""Paths that vLLM serves without a key, and that targets serve, too."""
LAST_PATHS = ("/pause", "/sleep", "/admin/drain", "/scale_elastic_ep")
"""Routes after which others wait: a walk calls them at its end."""
Operation = tuple[str, str]
"""Method and path."""


class Target:
    """A server that answers each request, and notes its method, path and key."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str | None]] = []
        target = self

        class Answering(Handler):
            def answer(self) -> None:
                if "Content-Length" in self.headers:
                    self.body()
                key = self.headers.get("Authorization")
                target.requests.append((self.command, self.path, key))
                self.reply(200, TARGET_ANSWER, Content_Type="application/json")

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = answer

        self.handler = Answering


@pytest.fixture
def target() -> Iterator[tuple[Target, str]]:
    upstream = Target()
    with serving(upstream.handler) as port:
        yield upstream, f"http://{TARGET_KEY}@127.0.0.1:{port}"


def operations_of(flags: Sequence[str]) -> list[Operation]:
    """Returns all routes of a server, and all paths that vLLM serves without a key."""
    operations = {("POST", path) for path in OPEN_PATHS}
    for line in routes(app_of("--force-dummy-tokenizer", *flags)):
        method, path, _ = line.split(" ")
        if method != "TRACE":
            operations.add((method, VARIABLE.sub("x", path)))
    return sorted(operations, key=_is_last)


def _is_last(operation: Operation) -> tuple[bool, str, str]:
    method, path = operation
    return path in LAST_PATHS, path, method


def answer_of(
    server: RunningServer, operation: Operation, headers: Mapping[str, str]
) -> tuple[int, bytes]:
    """Returns the status and the first bytes of the body."""
    method, path = operation
    body = None
    if method not in ("GET", "HEAD", "OPTIONS"):
        body = b"{}"
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        connection.request(method, path, body, {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        content = b""
        if response.getheader("Content-Type") != "text/event-stream":
            content = response.read(len(TARGET_ANSWER) + len(RECORDED_ANSWER))
        return response.status, content


def recording_of(path: Path, operations: Sequence[Operation]) -> str:
    """Writes a recording with an answer to each operation."""
    exchanges: list[Exchange] = []
    for method, route_path in operations:
        body = "{}"
        if method in ("GET", "HEAD", "OPTIONS"):
            body = ""
        answer = exchange(b"", (0.0, RECORDED_ANSWER), headers=JSON_HEADERS)
        request = RecordedRequest(method, route_path, JSON_HEADERS, body)
        exchanges.append(msgspec.structs.replace(answer, request=request))
    return written(path, exchanges)


@pytest.mark.parametrize("mode", ["record", "replay", "forward"])
@pytest.mark.parametrize("configuration", ["every feature", "pooling", "sglang"])
def test_request_without_a_key_reaches_neither_recording_nor_target_on_any_route(
    configuration: str, mode: str, tmp_path: Path, target: tuple[Target, str]
) -> None:
    upstream, url = target
    features = tuple(filter(is_flag, CONFIGURATIONS[configuration]))
    operations = operations_of(features)
    assert len(operations) > 40, "the walk knows the routes"
    file = tmp_path / "recording"
    recorded: list[Operation] = []
    if mode == "replay":
        recorded = operations
    recording_of(file, recorded)
    flags = ["--force-dummy-tokenizer", "--api-key", KEY, "--replay", str(file), *features]
    headers: dict[str, str] = {}
    if mode != "replay":
        flags += ["--target", url]
    if mode == "record":
        flags += ["--replay-miss", "record"]
    if mode == "forward":
        headers["X-Replay-Miss"] = "record"
    with running_server(*flags) as server:
        for operation in operations:
            for credentials in UNAUTHENTICATED:
                _, content = answer_of(server, operation, {**headers, **credentials})
                assert content not in (TARGET_ANSWER, RECORDED_ANSWER), (operation, credentials)
                assert upstream.requests == [], (operation, credentials)
        for operation in operations:
            method, path = operation
            if path.startswith(EXCLUDED_PREFIXES) or path in ("/ready", "/", "/metrics"):
                continue
            is_expected = mode == "replay" or path.startswith(RELAYED_PREFIXES)
            if not is_expected or method in ("HEAD", "OPTIONS"):
                continue
            status, content = answer_of(server, operation, {**headers, **AUTHENTICATED})
            expected = TARGET_ANSWER
            if mode == "replay":
                expected = RECORDED_ANSWER
            assert (status, content) == (200, expected), operation
            if mode != "replay":
                assert upstream.requests[-1] == (method, path, f"Bearer {TARGET_KEY}")
    answered = {path for _, path, _ in upstream.requests}
    if mode != "replay":
        assert answered >= set(OPEN_PATHS), "a client with a key still reaches the target"
    assert len(exchanges_of(file)) == len(recorded) + len(upstream.requests)


@pytest.mark.parametrize("path", OPEN_PATHS)
def test_open_route_answers_a_request_without_a_key_as_without_a_recording(
    path: str, tmp_path: Path, target: tuple[Target, str]
) -> None:
    upstream, url = target
    assert not path.startswith(GUARDED_PREFIXES)
    file = tmp_path / "recording"
    flags = ("--force-dummy-tokenizer", "--model", "m", "--api-key", KEY)
    replay = ("--replay", str(file), "--replay-miss", "record", "--target", url)
    with running_server(*flags) as plain, running_server(*flags, *replay) as recording:
        for headers in ({}, {"X-Replay-Miss": "nonsense"}):
            answer = answer_of(recording, ("POST", path), headers)
            assert answer == answer_of(plain, ("POST", path), headers)
    assert upstream.requests == []


def test_new_recordings_are_readable_by_their_owner_only(
    tmp_path: Path, target: tuple[Target, str]
) -> None:
    _, url = target
    file = tmp_path / "recording"
    flags = ("--force-dummy-tokenizer", "--replay", str(file), "--target", url)
    with running_server(*flags, "--replay-miss", "record") as server:
        assert answer_of(server, ("POST", "/tokenize"), {})[0] == 200
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        file.rename(tmp_path / "moved")
        answer_of(server, ("POST", "/detokenize"), {})
        wait_until(file.exists)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
