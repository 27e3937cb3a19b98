"""The other ranks of this server, asked over the loopback for what concerns them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from app.http.errors import ApiError, unavailable

if TYPE_CHECKING:
    from urllib3 import PoolManager

TIMEOUT_S = 5.0
PASSED_ON = ("authorization", "x-admin-key", "content-type")
"""Headers that a request for all ranks hands on."""


class PeerRanks:
    """`others` are rank and base URL of every other rank."""

    def __init__(self, own: int, others: Sequence[tuple[int, str]]) -> None:
        self.own = own
        self._others = others
        self._pool = _pool() if others else None

    def ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> dict[str, Any]:
        """The JSON answers by rank, ours left out.

        ApiError with the status and message of the first rank that refuses; 503 for one that does not
        answer.
        """
        kept = {name: headers[name] for name in PASSED_ON if name in headers}
        return {str(rank): self._ask(rank, method, url + path, kept, body) for rank, url in self._others}

    def _ask(self, rank: int, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Any:
        from urllib3.exceptions import HTTPError

        assert self._pool is not None
        try:
            answer = self._pool.request(method, url, headers=headers, body=body)
            told = answer.json()
        except (HTTPError, ValueError) as error:
            raise unavailable(f"Rank {rank} does not answer: {error}") from None
        if answer.status == 200:
            return told
        wrong = told.get("error") if isinstance(told, dict) else None
        message = wrong.get("message") if isinstance(wrong, dict) else f"status {answer.status}"
        kind = wrong.get("type", "Error") if isinstance(wrong, dict) else "Error"
        raise ApiError(answer.status, kind, f"Rank {rank}: {message}")


def _pool() -> PoolManager:
    from urllib3 import PoolManager  # a slow import, and most servers have one rank

    return PoolManager(timeout=TIMEOUT_S, retries=False, cert_reqs="CERT_NONE")
