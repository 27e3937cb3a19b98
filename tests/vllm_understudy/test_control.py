"""Calls that change one rank of a server and fail at another, which restarts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from vllm_understudy import ControlError
from vllm_understudy.control import CHOKE, Server

CONFIG = "/admin/config"
ALL_RANKS = "?ranks=all"


class PartialServer(Server):
    """A server whose first rank obeys, and whose second rank does not answer."""

    def __init__(self) -> None:
        super().__init__(port=1, log_file=Path("missing"))
        self.values: dict[str, Any] = {"fault-rules": [], "seed": 7, "script": []}
        self.is_choked = False
        self.is_second_rank_up = False

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        if path == CHOKE:
            self.is_choked = method == "POST"
        if path == CONFIG:
            return dict(self.values)
        if path == CONFIG + ALL_RANKS:
            if "seed" in (body or {}):
                raise ControlError("400: seed cannot change")
            self.values.update(body or {})
        if method == "POST" and not self.is_second_rank_up:
            raise ControlError("503: accepted by rank 0")
        return {}


@pytest.fixture
def server() -> PartialServer:
    return PartialServer()


def test_throttling_that_one_rank_rejects_is_undone_at_the_other_ranks(
    server: PartialServer,
) -> None:
    with pytest.raises(ControlError, match="accepted by rank 0"), server.choke(paused=True):
        pass
    assert not server.is_choked


def test_reset_restores_a_setting_whose_change_failed_at_one_rank(server: PartialServer) -> None:
    with pytest.raises(ControlError, match="accepted by rank 0"):
        server.fault("error", status=503)
    assert server.values["fault-rules"]
    server.is_second_rank_up = True
    server.reset()
    assert server.values["fault-rules"] == []


def test_reset_does_not_send_a_setting_that_was_rejected(server: PartialServer) -> None:
    with pytest.raises(ControlError, match="seed cannot change"):
        server.configure(seed=8)
    server.is_second_rank_up = True
    server.reset()
    assert server.values["seed"] == 7
