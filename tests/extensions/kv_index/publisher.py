"""An engine's sockets, and what it takes to get messages through an index in one thread."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from threading import Thread

import gevent
import zmq

from app.core.engine.kvcache.events import KVEvent, encoder
from app.core.engine.kvcache.replay import END
from app.extensions.kv_index.backend import Backend
from app.extensions.kv_index.index import Index
from app.extensions.kv_index.memory import MemoryBackend
from app.extensions.kv_index.pods import TargetSource
from app.extensions.kv_index.pool import Pool
from app.extensions.kv_index.replay import POLL_S
from app.extensions.kv_index.resources import PoolSettings
from app.extensions.kv_index.subscriber import Context, Subscriber, SubscriberSettings
from tests.extensions.kv_index.engines import batch, matched

LOCAL = "tcp://127.0.0.1"


class FakeEngine:
    """Publishes batches and answers requests for replays, with topics as vLLM from 0.26 on, or
    without.
    """

    def __init__(
        self,
        context: Context,
        topic: str,
        connect_to: str | None = None,
        first: int = 0,
        topics: bool = True,
        hwm: int = 1000,
        replay_port: int | None = None,
    ) -> None:
        self.topic, self.sequence, self.topics = topic.encode(), first, topics
        self.kept: dict[int, bytes] = {}
        self.asked: list[int] = []
        self._socket = context.socket(zmq.PUB)
        self._socket.linger = 0
        self._socket.sndhwm = hwm
        self._router = context.socket(zmq.ROUTER)
        self._router.linger = 0
        self._router.sndhwm = 0  # a replay may be long
        if replay_port is None:
            self.replay_port = self._router.bind_to_random_port(LOCAL)
        else:
            self.replay_port = replay_port
            self._router.bind(f"{LOCAL}:{replay_port}")
        self.endpoint = ""
        if connect_to is None:
            self.endpoint = f"{LOCAL}:{self._socket.bind_to_random_port(LOCAL)}"
        else:
            self._socket.connect(connect_to)

    @property
    def replay(self) -> str:
        return f"{LOCAL}:{self.replay_port}"

    def pack(self, *events: KVEvent, rank: int = 0, ts: float | None = None) -> bytes:
        return encoder("map")(
            batch(*events, rank=rank, ts=1000.0 + self.sequence if ts is None else ts)
        )

    def publish(
        self, *events: KVEvent, lose: bool = False, ts: float | None = None, rank: int = 0
    ) -> int:
        """Publish a batch, or only keep it for replays; its number."""
        payload = self.pack(*events, ts=ts, rank=rank)
        self.kept[self.sequence] = payload
        if not lose:
            self.send(payload)
        else:
            self.sequence += 1
        return self.sequence - 1

    def send(self, payload: bytes) -> None:
        self.send_frames(self.topic, self.sequence.to_bytes(8, "big"), payload)
        self.sequence += 1

    def send_frames(self, *frames: bytes) -> None:
        self._socket.send_multipart(frames)

    def serve(self) -> None:
        while self._router.poll(0):
            client, empty, start = self._router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            for number, payload in sorted(self.kept.items()):
                if number >= self.asked[-1]:
                    self._answer(client, empty, number.to_bytes(8, "big"), payload)
            self._answer(client, empty, END, b"")

    def hear(self) -> int:
        """Wait for a request for a replay, and leave it unanswered; where it is to begin."""
        return int.from_bytes(self._router.recv_multipart()[-1], "big")

    def _answer(self, client: bytes, empty: bytes, number: bytes, payload: bytes) -> None:
        topic = [self.topic if payload else b""] if self.topics else []
        self._router.send_multipart([client, empty, *topic, number, payload])

    def close(self) -> None:
        self._socket.close(linger=0)
        self._router.close(linger=0)


class Station:
    """An index behind sockets, driven step by step; `now` is its clock."""

    def __init__(self, context: Context, backend: Backend | None = None) -> None:
        self.context, self.now = context, 0.0
        self.index = Index(backend or MemoryBackend(), block_size=4)
        self.pool = self.make_pool()
        self.subscriber: Subscriber | None = None
        self.sources: Sequence[TargetSource] = ()
        self.engines: list[FakeEngine] = []

    def make_pool(self, **limits: int) -> Pool:
        pool = Pool(
            self.index, PoolSettings(**limits), lambda: self.now, lambda: 2000.0, lambda: 0.0
        )
        pool.resources.context = self.context
        return pool

    def listen(self, *sources: TargetSource, **settings: object) -> Subscriber:
        settings.setdefault("bind", f"{LOCAL}:*")
        made = SubscriberSettings(**settings)  # type: ignore[arg-type]
        self.sources = sources
        self.subscriber = Subscriber(self.pool, made, sources)
        self.subscriber.open(self.context)
        return self.subscriber

    def engine(self, topic: str = "kv@a@m", connect: bool = True, **more: object) -> FakeEngine:
        address = self.subscriber.address if connect and self.subscriber else None
        engine = FakeEngine(self.context, topic, address, **more)  # type: ignore[arg-type]
        self.engines.append(engine)
        return engine

    def step(self) -> None:
        for engine in self.engines:
            engine.serve()
        for source in self.sources:
            source.refresh()
        if self.subscriber is not None:
            self.subscriber.step(self.now)
        work(self.pool)
        gevent.sleep(0)

    def until(self, done: Callable[[], object], each: Callable[[], object] | None = None) -> None:
        """Go on until something is so; the time limit of tests ends what never is."""
        while not done():
            if each is not None:
                each()
            self.step()

    def settle(self, steps: int = 5) -> None:
        """Go on for a while in which nothing more should happen."""
        for _ in range(steps):
            self.step()
            gevent.sleep(POLL_S / 2)

    def meet(self, engine: FakeEngine) -> None:
        """Until messages of the engine arrive:

        those that it sends before a subscription are lost.
        """
        before = self.received()
        self.until(
            lambda: self.received() > before, self._now_and_then(engine, b"kv@a@m", b"hello")
        )
        lost = self.index.metrics.skipped_messages
        last_hello = self._now_and_then(engine, b"kv@", bytes(8), b"that was the last hello")
        self.until(lambda: lost.get("bad_topic", 0) > 0, last_hello)
        self.index.metrics.skipped_messages.clear()

    def _now_and_then(self, engine: FakeEngine, *frames: bytes) -> Callable[[], object]:
        """Sends these frames at first and then rarely, so that they do not pile up."""
        steps = count()
        return lambda: next(steps) % 500 == 0 and engine.send_frames(*frames)

    def received(self) -> int:
        return self.index.metrics.skipped_messages.get("bad_frames", 0)

    def ended_replays(self) -> dict[str, int]:
        lines = self.index.metrics.render({}).splitlines()
        counts = {
            line.split('"')[1]: float(line.split()[-1])
            for line in lines
            if "replays_total{" in line
        }
        return {result: int(count) for result, count in counts.items() if count}

    def matched(self, tokens: list[int], model: str = "m") -> dict[str, int]:
        return matched(self.index, tokens, model)

    def close(self) -> None:
        for engine in self.engines:
            engine.close()
        if self.subscriber is not None:
            self.subscriber.close()
        self.pool.close()


def work(pool: Pool) -> None:
    for shard in pool.shards:
        pool.process(shard)


def ends(context: Context) -> bool:
    """Whether all sockets are closed: else it waits for them."""
    ending = Thread(target=context.term, daemon=True)
    ending.start()
    ending.join(10)
    return not ending.is_alive()


@contextmanager
def station(backend: Backend | None = None) -> Iterator[Station]:
    context: Context = zmq.Context()
    made = Station(context, backend)
    try:
        yield made
    finally:
        made.close()
        context.destroy(linger=0)
