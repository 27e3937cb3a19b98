"""Requests to all ranks of a server, which have separate ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from app.core.server.http.context import RequestContext
from app.core.server.http.errors import ApiError, unavailable
from config.untrusted import decode_untrusted, python_json

if TYPE_CHECKING:
    from app.core.base.http_pool import HttpPool

RANK_TIMEOUT_S = 5.0
"""Longest time that another rank may take to answer, in seconds."""
MAX_ANSWER_BYTES = 64 << 20
REPEATABLE = ("GET", "PUT", "DELETE")
"""Methods of requests that may be sent twice."""
FORWARDED_HEADERS = ("authorization", "x-admin-key", "content-type")


class PeerRanks:
    """The other ranks of this server, by number and base URL.

    Requests with `?ranks=all` reach them, too.
    """

    def __init__(self, own_rank: int, others: Sequence[tuple[int, str]]) -> None:
        self.own_rank = own_rank
        self._others = others
        self._pool: HttpPool | None = None
        if others:
            from app.core.base.http_pool import HttpPool  # most servers have one rank

            self._pool = HttpPool(verifies=False)

    def answers(self, context: RequestContext, own_answer: object, body: bytes = b"") -> object:
        """Returns the answer of this rank; with `?ranks=all` every rank's answer, by rank.

        Raises:
            ApiError: as `ask` does.
        """
        if context.query().get("ranks") != "all":
            return own_answer
        _, _, query = context.target.partition("?")
        forwarded_query = "&".join(part for part in query.split("&") if part != "ranks=all")
        path = context.path
        if forwarded_query:
            path += "?" + forwarded_query
        first = {str(self.own_rank): own_answer}
        answers = self.ask(context.method, path, context.headers, body=body, first=first)
        return dict(sorted(answers.items()))

    def ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        first: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Returns the JSON answers of the other ranks, by rank, after the `first` answers.

        All ranks are asked, also after one that fails.

        Raises:
            ApiError: with the status of the first rank that rejects the request, or 503 if it does
                not answer. The message also names the ranks that accepted it.
        """
        forwarded = {name: headers[name] for name in FORWARDED_HEADERS if name in headers}
        answers = dict(first or {})
        failure: ApiError | None = None
        for rank, url in self._others:
            try:
                answers[str(rank)] = self._ask(
                    rank, method, url + path, headers=forwarded, body=body
                )
            except ApiError as error:
                failure = failure or error
        if failure is None:
            return answers
        if answers:
            failure.message += f" Accepted by rank: {', '.join(sorted(answers))}."
        raise failure

    def _ask(
        self, rank: int, method: str, url: str, *, headers: Mapping[str, str], body: bytes
    ) -> Any:
        from urllib3.exceptions import HTTPError, ProtocolError

        from app.core.base.error_body import error_fields

        assert self._pool is not None
        send = partial(
            self._pool.request,
            method,
            url,
            timeout_s=RANK_TIMEOUT_S,
            max_bytes=MAX_ANSWER_BYTES,
            headers=headers,
            body=body,
        )
        try:
            try:
                status, content = send()
            except ProtocolError:
                if method not in REPEATABLE:
                    raise
                status, content = send()  # the worker has crashed; the next one answers
            answer = decode_untrusted(content, decoder=python_json)
        except (HTTPError, TimeoutError, ValueError) as error:
            raise unavailable(f"Rank {rank} does not respond: {error}.") from None
        if status == 200:
            return answer
        details = error_fields(content)
        reason = details.get("message", f"status {status}")
        error_type = str(details.get("type", "Error"))
        raise ApiError(status, error_type, f"Rank {rank}: {reason}")
