"""An engine's sockets, and an indexer that reads them step by step in one thread."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
        self.topic = topic.encode()
        self.sequence = first
        self.topics = topics
        self.batches: dict[int, bytes] = {}
        self.replay_starts: list[int] = []
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
        """Publishes a batch, or only keeps it for replays, and returns its number."""
        payload = self.pack(*events, ts=ts, rank=rank)
        self.batches[self.sequence] = payload
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
            client, _, start = self._router.recv_multipart()
            self.replay_starts.append(int.from_bytes(start, "big"))
            for number, payload in sorted(self.batches.items()):
                if number >= self.replay_starts[-1]:
                    self.reply_batch(client, number.to_bytes(8, "big"), payload)
            self.reply_batch(client, END, b"")

    def has_replay_request(self) -> bool:
        """Whether a request for a replay has arrived and is not answered."""
        return bool(self._router.poll(0))

    def receive_client(self) -> bytes:
        """Reads a request for a replay, and returns the identity of its client."""
        client: bytes = self._router.recv_multipart()[0]
        return client

    def receive_start(self) -> int:
        """Reads a request for a replay, and returns the first number that it requests."""
        return int.from_bytes(self._router.recv_multipart()[-1], "big")

    def reply(self, client: bytes, *frames: bytes) -> None:
        """Sends frames to the client of a request for a replay."""
        self._router.send_multipart([client, *frames])

    def connect(self, address: str, ipv6: bool = False) -> None:
        """Connects the publisher to a subscriber."""
        self._socket.ipv6 = ipv6
        self._socket.connect(address)

    def reply_batch(self, client: bytes, number: bytes, payload: bytes) -> None:
        """Sends one batch of a replay, or its end, with a topic if this version has topics."""
        topic = []
        if self.topics:
            topic = [self.topic if payload else b""]
        self.reply(client, b"", *topic, number, payload)

    def close(self) -> None:
        self._socket.close(linger=0)
        self._router.close(linger=0)


class SteppedIndexer:
    """An index behind sockets, driven step by step; `now` is its clock."""

    def __init__(self, context: Context, backend: Backend | None = None) -> None:
        self.context = context
        self.now = 0.0
        self.index = Index(backend or MemoryBackend(), block_size=4)
        self.pool = self.make_pool()
        self.subscriber: Subscriber | None = None
        self.sources: Sequence[TargetSource] = ()
        self.engines: list[FakeEngine] = []

    def make_pool(self, **limits: int) -> Pool:
        pool = Pool(
            self.index,
            PoolSettings(**limits),
            now=self.monotonic_time,
            wall=fixed_unix_time,
            clock=stopped_clock,
        )
        pool.resources.context = self.context
        return pool

    def listen(self, *sources: TargetSource, **settings: object) -> Subscriber:
        settings.setdefault("bind", f"{LOCAL}:*")
        subscriber_settings = SubscriberSettings(**settings)  # type: ignore[arg-type]
        self.sources = sources
        self.subscriber = Subscriber(self.pool, subscriber_settings, sources)
        self.subscriber.open(self.context)
        return self.subscriber

    def engine(self, topic: str = "kv@a@m", connect: bool = True, **options: object) -> FakeEngine:
        address = self.subscriber.address if connect and self.subscriber else None
        engine = FakeEngine(self.context, topic, address, **options)  # type: ignore[arg-type]
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

    def monotonic_time(self) -> float:
        """The time of the indexer's clock, in seconds."""
        return self.now

    def wait_until(
        self,
        is_fulfilled: Callable[[], object],
        before_each_step: Callable[[], object] | None = None,
    ) -> None:
        """Steps until a condition is fulfilled, or until the time limit of the test."""
        while not is_fulfilled():
            if before_each_step is not None:
                before_each_step()
            self.step()

    def wait_for_matches(
        self, tokens: list[int], counts: Mapping[str, int], model: str = "m"
    ) -> None:
        """Steps until the pods have these counts of matched blocks."""
        while self.matched(tokens, model) != counts:
            self.step()

    def wait_for_copies(self, count: int) -> None:
        """Steps until the backend has this many copies of blocks."""
        while self.index.backend.size().copies != count:
            self.step()

    def wait_for_losses(self, reason: str, count: int) -> None:
        """Steps until this many messages were skipped for a reason."""
        while self.index.metrics.skipped_messages.get(reason, 0) < count:
            self.step()

    def wait_for_replay_request(self, engine: FakeEngine) -> None:
        """Steps until an engine that does not answer has a request for a replay."""
        while not engine.has_replay_request():
            self.step()

    def wait_until_idle(self) -> None:
        """Steps until no message is queued or waits for a replay."""
        while len(self.pool) or self.pool.resources.waiting_bytes:
            self.step()

    def settle(self, steps: int = 5) -> None:
        """Steps for a while in which nothing more should happen."""
        for _ in range(steps):
            self.step()
            gevent.sleep(POLL_S / 2)

    def meet(self, engine: FakeEngine) -> None:
        """Waits until messages of the engine arrive: those before a subscription are lost."""
        skipped = self.index.metrics.skipped_messages
        bad_frames = skipped.get("bad_frames", 0)
        self._send_until_skipped("bad_frames", bad_frames + 1, (engine, b"kv@a@m", b"hello"))
        last_hello = (engine, b"kv@", bytes(8), b"that was the last hello")
        self._send_until_skipped("bad_topic", 1, last_hello)
        skipped.clear()

    def _send_until_skipped(
        self, reason: str, count: int, message: tuple[FakeEngine, *tuple[bytes, ...]]
    ) -> None:
        """Sends frames at first and then rarely, so that they do not pile up."""
        engine, *frames = message
        step_number = 0
        while self.index.metrics.skipped_messages.get(reason, 0) < count:
            if step_number % 500 == 0:
                engine.send_frames(*frames)
            step_number += 1
            self.step()

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


def fixed_unix_time() -> float:
    return 2000.0


def stopped_clock() -> float:
    return 0.0


def work(pool: Pool) -> None:
    """Processes all queued messages."""
    for shard in pool.shards:
        pool.process(shard)


def ends(context: Context) -> bool:
    """Whether all sockets of a context are closed, so that it can be terminated."""
    ending = Thread(target=context.term, daemon=True)
    ending.start()
    ending.join(10)
    return not ending.is_alive()


@contextmanager
def stepped_indexer(backend: Backend | None = None) -> Iterator[SteppedIndexer]:
    context: Context = zmq.Context()
    indexer = SteppedIndexer(context, backend)
    try:
        yield indexer
    finally:
        indexer.close()
        context.destroy(linger=0)
