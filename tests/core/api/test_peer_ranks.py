"""What concerns all ranks is asked of the others, over HTTP."""

import json
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from app.core.api.peer_ranks import PeerRanks
from app.core.server.http.errors import ApiError
from tests.http_server import Handler, serving
from tests.running_server import free_port


class Rank(Handler):
    """Answers with the status and the body that the path names, or with the headers that came."""

    def do_GET(self) -> None:
        status, _, body = self.path.lstrip("/").partition("/")
        self.reply(int(status), bytes.fromhex(body) or json.dumps(dict(self.headers)).encode())


class RestartingRank(Handler):
    """Ends the first connection without an answer, like a worker that crashes."""

    methods: ClassVar[list[str]] = []

    def do_DELETE(self) -> None:
        self.methods.append(self.command)
        if len(self.methods) == 1:
            self.close_connection = True
        else:
            self.reply(200, b"{}")

    do_POST = do_DELETE


@pytest.fixture
def restarting_rank() -> Iterator[str]:
    RestartingRank.methods.clear()
    with serving(RestartingRank) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def rank() -> Iterator[str]:
    with serving(Rank) as port:
        yield f"http://127.0.0.1:{port}"


def path(status: int, body: Any) -> str:
    return f"/{status}/{json.dumps(body).encode().hex()}"


def test_only_authentication_headers_are_forwarded_to_peer_ranks(rank: str) -> None:
    headers = {"authorization": "Bearer k", "content-type": "application/json", "cookie": "c"}
    received_headers = PeerRanks(0, [(1, rank)]).ask("GET", "/200/", headers)["1"]
    sent = {name.lower(): value for name, value in received_headers.items()}
    assert sent.get("authorization") == "Bearer k" and "cookie" not in sent


def test_rejection_by_one_rank_is_returned_to_the_client(rank: str) -> None:
    refusals: list[tuple[int, Any, str, str]] = [
        (400, {"error": {"message": "No such key.", "type": "Misfit"}}, "Misfit", "No such key."),
        (401, {"error": {"message": "Who are you?"}}, "Error", "Who are you?"),
        (404, {"error": "none"}, "Error", "none"),
        (409, {}, "Error", "status 409"),
        (500, ["error"], "Error", "status 500"),
    ]
    for status, body, kind, message in refusals:
        with pytest.raises(ApiError) as refused:
            PeerRanks(0, [(1, rank)]).ask("GET", path(status, body), {})
        assert (refused.value.status, refused.value.type) == (status, kind)
        assert refused.value.message == f"Rank 1: {message}"


def test_error_for_an_unreachable_rank_names_the_accepting_ranks(rank: str) -> None:
    closed = f"http://127.0.0.1:{free_port()}"
    ranks = PeerRanks(0, [(1, closed), (2, rank), (3, closed)])
    with pytest.raises(ApiError) as refused:
        ranks.ask("GET", "/200/", {}, first={"0": {}})
    assert refused.value.message.startswith("Rank 1 does not respond: ")
    assert refused.value.message.endswith(". Accepted by rank: 0, 2.")


def test_rank_that_does_not_respond_or_does_not_return_json_is_unavailable(rank: str) -> None:
    for url, path in (
        (f"http://127.0.0.1:{free_port()}", "/200/"),
        (rank, "/200/" + b"<html>".hex()),
    ):
        with pytest.raises(ApiError, match="Rank 2 does not respond") as refused:
            PeerRanks(0, [(2, url)]).ask("GET", path, {})
        assert refused.value.status == 503


def test_delete_request_to_a_restarting_peer_rank_is_retried(restarting_rank: str) -> None:
    assert PeerRanks(0, [(1, restarting_rank)]).ask("DELETE", "/", {}) == {"1": {}}
    assert RestartingRank.methods == ["DELETE", "DELETE"]


def test_post_request_to_a_restarting_peer_rank_is_not_retried(restarting_rank: str) -> None:
    with pytest.raises(ApiError, match="Rank 1 does not respond"):
        PeerRanks(0, [(1, restarting_rank)]).ask("POST", "/", {})
    assert RestartingRank.methods == ["POST"]
