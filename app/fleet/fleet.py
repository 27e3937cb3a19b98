"""The pods and the indexer of a fleet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count

import msgspec

from app.fleet.errors import FleetError, IndexerError
from app.fleet.indexer import COMPLETIONS, Incoming, Indexer
from app.fleet.plan import Plan
from app.fleet.ports import HOST
from app.fleet.processes import Processes
from app.load.connection import exchange

SETTLE_LIMIT_S = 15.0
HEARD_WITHIN_S = 2.0
"""How long an event may be on its way before it is taken for lost and another one is caused."""
LOOK_AGAIN_S = 0.02
MARK = "Mark {number}:"
MARK_WORD = " and"


class Fleet:
    """Pods whose KV events reach the indexer. Addresses are host:port; a pod's is also its name there."""

    def __init__(
        self,
        pods: tuple[str, ...],
        indexer: Indexer,
        plan: Plan,
        processes: Processes,
        now: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.pods, self.indexer, self.processes = pods, indexer, processes
        self.model = plan.model
        # A block that is full whatever the tokenizer makes of a word.
        self._mark = MARK + MARK_WORD * (2 * plan.block_size)
        self._now, self._sleep = now, sleep
        self._marks = count()

    def forget(self) -> None:
        """Empty the pods' caches, and wait until the indexer knows. FleetError when that fails."""
        give_up_s = self._now() + SETTLE_LIMIT_S
        for pod in self.pods:
            # Refused while requests run, as those of a client that left may do for a moment.
            while not self._reset(pod):
                self._wait_until(give_up_s, f"pod {pod} does not empty its cache")
        self.settle()

    def settle(self) -> None:
        """Wait until the indexer has heard from every pod what happened up to now. FleetError if it does not.

        Each pod is given a prompt that nobody knows yet. A pod's events keep their order, so once the indexer
        knows of this prompt it knows all that was before it.
        """
        give_up_s = self._now() + SETTLE_LIMIT_S
        while True:
            mark = self._marked()
            heard_by_s = self._now() + HEARD_WITHIN_S
            missing = self._missing(mark)
            while missing and self._now() < heard_by_s:
                self._wait_until(give_up_s, f"KV events of {', '.join(missing)} do not reach the indexer")
                missing = self._missing(mark)
            if not missing:
                return

    def _reset(self, pod: str) -> bool:
        status, body = _answered(pod, "/reset_prefix_cache", b"")
        if status != 200:
            raise FleetError(f"pod {pod} answers /reset_prefix_cache with status {status}")
        reply = msgspec.json.decode(body) if body else {}
        return bool(reply.get("success", True))

    def _marked(self) -> Incoming:
        """A request with a new prompt that every pod has served."""
        prompt = self._mark.format(number=next(self._marks))
        body = msgspec.json.encode({"model": self.model, "prompt": prompt, "max_tokens": 1})
        for pod in self.pods:
            status, answer = _answered(pod, COMPLETIONS, body)
            if status != 200:
                raise FleetError(f"pod {pod} answers with status {status}: {answer.decode(errors='replace')}")
        return Incoming(COMPLETIONS, body)

    def _missing(self, mark: Incoming) -> list[str]:
        try:
            scores = self.indexer.scores(mark)
        except IndexerError as error:
            self.processes.check()
            raise FleetError(f"the indexer gives no scores: {error}") from error
        return [pod for pod in self.pods if pod not in scores]

    def _wait_until(self, give_up_s: float, complaint: str) -> None:
        self.processes.check()
        if self._now() > give_up_s:
            raise FleetError(complaint)
        self._sleep(LOOK_AGAIN_S)


@contextmanager
def running_fleet(
    plan: Plan,
    pods: int,
    now: Callable[[], float],
    sleep: Callable[[float], None],
    started: Callable[[], None],
) -> Iterator[Fleet]:
    """A fleet that is ready, for as long as the block lasts; `started` is called for each of its processes.

    FleetError, with the last line of the log, when one of them does not start.
    """
    with Processes(now, sleep) as processes:
        events = f"tcp://{HOST}:{processes.ports.take()}"
        servers = [processes.start("indexer", partial(plan.indexer, events=events))]
        servers += [
            processes.start(f"pod {number}", partial(plan.pod, number, events=events))
            for number in range(pods)
        ]
        addresses = []
        for server in servers:
            addresses.append(processes.wait(server).address)
            started()
        fleet = Fleet(tuple(addresses[1:]), Indexer(addresses[0]), plan, processes, now, sleep)
        fleet.settle()
        yield fleet


def _answered(pod: str, path: str, body: bytes) -> tuple[int, bytes]:
    try:
        return exchange(pod, "POST", path, body, timeout_s=30.0)
    except OSError as error:
        raise FleetError(f"pod {pod} does not answer: {error}") from error
