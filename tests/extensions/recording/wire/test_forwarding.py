"""Paths of real clients reach a real upstream unchanged, or are rejected."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.extensions.recording.recordings import exchanges_of, recording_proxy
from tests.hostile.raw_client import Wire, get, wait_until
from tests.hostile.waits import wait_for_log
from tests.http_server import Handler, serving
from tests.other_workers import served_by
from tests.running_server import RunningServer, running_server

FLAGS = ("--force-dummy-tokenizer", "--model", "m", "--replay-miss", "record")
FORWARDED = (
    "/v1/models/meta%2Fllama",
    "/v1/models/what%3Fnow",
    "/v1/models/a%20b?c=%20d",
    "/v1/models/%C3%BC",
    "/v1/models/a/../b",
    "/v1/models/100%25",
)
FORGED = "/v1/models/x%0d%0anot%20kept:%20forged"
"""Decoded, it would be a line of the log."""
REFUSED = (
    "/v1/../admin/config",
    "/v1/%2e%2e/admin/config",
    "/v1/..%2fadmin/config",
    "/v1/%252e%252e%252fadmin/config",
    "/v1/..\\admin/config",
    "/v1/..%5cadmin/config",
    "/v1%2fmodels",
)


class Target:
    """An upstream that answers each request with the target of its request line."""

    def __init__(self) -> None:
        self.requested_paths: list[str] = []
        target = self

        class Answering(Handler):
            def do_GET(self) -> None:
                target.requested_paths.append(self.path)
                if self.path != FORGED:  # no answer at all is not kept
                    self.reply(200, self.path.encode(), Content_Type="text/plain")

        self.handler = Answering


@pytest.fixture
def target() -> Target:
    return Target()


@pytest.fixture(params=["own worker", "gthread", "proxy"])
def recorder(
    request: pytest.FixtureRequest, tmp_path: Path, target: Target
) -> Iterator[RunningServer]:
    """A server that records to the file "r", with each of the ways that requests come in."""
    file = tmp_path / "r"
    with serving(target.handler) as port:
        url = f"http://KEY@127.0.0.1:{port}"
        if request.param == "proxy":
            with recording_proxy(url, file) as proxy:
                yield proxy
        elif request.param == "gthread":
            env = {"SIM_REPLAY": str(file), "SIM_REPLAY_MISS": "record", "SIM_TARGET": url}
            with served_by("gthread", tmp_path, **env) as server:
                yield server
        else:
            with running_server(*FLAGS, "--replay", str(file), "--target", url) as server:
                yield server


def test_only_paths_within_the_target_are_forwarded(
    tmp_path: Path, target: Target, recorder: RunningServer
) -> None:
    for path in FORWARDED:
        answer = get(recorder.port, path)
        assert answer.body == path.encode()
    assert target.requested_paths == [*FORWARDED]
    for path in REFUSED:
        answer = get(recorder.port, path)
        error = answer.json()["error"]
        assert (answer.status, error["code"], error["type"]) == (400, 400, "BadRequestError"), path
        assert error["message"].endswith("the request is not sent to the target.")
    assert target.requested_paths == [*FORWARDED], "nothing that leaves /v1 reaches the target"
    assert get(recorder.port, FORGED).status == 502
    wait_for_log(recorder, f"not kept: GET {FORGED}: ")
    assert [
        line for line in recorder.log().splitlines() if line.startswith("not kept: forged")
    ] == []
    file = tmp_path / "r"
    wait_until(lambda: len(exchanges_of(file)) == len(FORWARDED))
    assert {exchange.request.target for exchange in exchanges_of(file)} == {*FORWARDED}


def test_encoded_and_literal_slashes_in_paths_are_recorded_separately(
    tmp_path: Path, target: Target
) -> None:
    flags = (*FLAGS, "--replay", str(tmp_path / "r"), "--root-path", "/behind/proxy")
    with (
        serving(target.handler) as port,
        running_server(*flags, "--target", f"http://127.0.0.1:{port}/v1") as server,
    ):
        for _ in range(2):
            for path in ("/v1/models/a%2Fb", "/v1/models/a/b"):
                assert get(server.port, f"/behind/proxy{path}").body == path.encode()
                assert get(server.port, path).body == path.encode()
    assert target.requested_paths == ["/v1/models/a%2Fb", "/v1/models/a/b"]


def test_model_name_cannot_forge_a_log_line(tmp_path: Path, target: Target) -> None:
    with (
        serving(target.handler) as port,
        running_server(
            *FLAGS, "--replay", str(tmp_path / "r"), "--target", f"only=http://127.0.0.1:{port}"
        ) as server,
        Wire(server.port) as wire,
    ):
        answer = wire.post({"model": "x\nnot kept: forged", "prompt": "Hi"}).answer()
        assert answer.status == 404
        assert [line for line in server.log().splitlines() if line.startswith("not kept")] == []
        assert "`x\\nnot kept: forged`" in server.log()
