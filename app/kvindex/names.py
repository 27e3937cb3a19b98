"""Names of hosts, looked up beside whoever asks: a name server that is slow holds up no events."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from app.kvindex.pods import NotToldYet, Resolve, resolve_host


class Names:
    """Answers with what `resolve` said last, and asks it again in a thread (a greenlet, under gevent)."""

    def __init__(self, resolve: Resolve = resolve_host) -> None:
        self._resolve = resolve
        self._answers: dict[str, Sequence[str] | OSError] = {}
        self._asked: set[str] = set()
        self._has_news = False

    def __call__(self, host: str) -> Sequence[str]:
        """See `Resolve`. NotToldYet before there is an answer."""
        if host not in self._asked:
            self._asked.add(host)
            threading.Thread(target=self._ask, args=(host,), name="kvindex-names", daemon=True).start()
        answer = self._answers.get(host)
        if answer is None:
            raise NotToldYet(f"nobody has told the addresses of {host} yet")
        if isinstance(answer, OSError):
            raise OSError(*answer.args)
        return answer

    def take_news(self) -> bool:
        """Whether some answer is another one than before; told once."""
        news, self._has_news = self._has_news, False
        return news

    def _ask(self, host: str) -> None:
        """Thread."""
        before = self._answers.get(host)
        try:
            self._answers[host] = self._resolve(host)
        except OSError as error:
            self._answers[host] = error
        self._has_news |= before is None or before != self._answers[host] and not isinstance(before, OSError)
        self._asked.discard(host)
