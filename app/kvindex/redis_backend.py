"""The index in Redis or Valkey: several indexers share the data, which outlives their restarts."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import gevent
import msgspec
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from app.base.clock.pause import pause_if_possible, wait_off_hub
from app.kvindex.backend import (
    CPU,
    GPU,
    MOST_HOLDERS,
    Backend,
    BackendUnavailable,
    Clear,
    Copies,
    EngineGroup,
    Found,
    Holders,
    IndexedEngine,
    IndexSize,
    Offload,
    Operation,
    Outcome,
    Owned,
    Stamp,
    Store,
    TooManyHolders,
)
from app.kvindex.decoding import MOST_EVENTS

SCRIPT = Path(__file__).with_name("redis.lua")
LEARN_HOLDERS = 512
"""Holders read from an answer before other greenlets run."""
UNAVAILABLE = redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError, redis.OutOfMemoryError
_ATTEMPTS = 5
CALL_TIMEOUTS = 5
"""Longest call, in time-outs:

two to connect and two to answer, as a call is tried twice, and one spare.
"""

T = TypeVar("T")


class RedisBackend(Backend):
    """Index in Redis; `redis.lua` describes the layout of the data. Greenlets may share the
    backend.

    `url` has a scheme redis, rediss, valkey, valkeys or unix, or is only host and port. All keys
    begin with `namespace`. A block expires `ttl_s` seconds after its last store, with 0 never;
    `size` still counts expired blocks. `timeout_s` limits one attempt of a call. The first call
    connects.
    """

    def __init__(
        self,
        url: str,
        ttl_s: int = 0,
        namespace: str = "understudy",
        timeout_s: float = 1.0,
        most_holders: int = MOST_HOLDERS,
    ) -> None:
        """Raises ValueError for an invalid URL."""
        self.tiers = [GPU, CPU]
        self.events_a_turn = MOST_EVENTS  # a batch is one script
        self._ttl_s, self._namespace, self._timeout_s = ttl_s, namespace, timeout_s
        self._most_holders = most_holders
        self._tidied = False
        self._version: bytes | None = None
        """Version of the holders and tiers that this indexer knows."""
        self._holders = Holders(most_holders)
        self._redis = redis.Redis.from_url(
            redis_url(url),
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), retries=1),
        )
        self._script = self._redis.register_script(SCRIPT.read_text("utf-8"))

    def owned(self, source: IndexedEngine, engine: Sequence[tuple[int, int]]) -> list[Owned | None]:
        arguments = [text for group, key in engine for text in (str(group), digits(key))]
        found = self._run("owned", name_of(source), *arguments)
        return [None if value is None else unpacked(value) for value in found]

    def apply(
        self, source: IndexedEngine, operations: Sequence[Operation], stamp: Stamp | None = None
    ) -> Outcome:
        batch = {
            "epoch": self.epoch,
            "source": name_of(source),
            "pod": source.pod,
            "ttl": self._ttl_s,
            "most": self._most_holders,
            "ops": [written(operation, source) for operation in operations],
            **({} if stamp is None else msgspec.structs.asdict(stamp)),
        }
        epoch, result, *counts = self._run("apply", msgspec.msgpack.encode(batch))
        self.epoch = epoch.decode()
        if result == b"lost":
            self.times_lost += 1
            raise BackendUnavailable("Redis has lost what it held")
        if result == b"full":
            raise TooManyHolders(f"there are {self._most_holders} holders already")
        outcome = Outcome(*counts) if result == b"applied" else Outcome(applied=False)
        cleared = (
            stamp is not None
            and stamp.restart
            or any(isinstance(each, Clear) for each in operations)
        )
        if (
            cleared or not self._tidied
        ):  # the first batch also removes what an earlier indexer has left
            self._tidied = True
            with suppress(
                BackendUnavailable
            ):  # the batch is applied; the next clear removes the rest
                outcome.removed += self.tidy()
        return outcome

    def lookup(self, keys: Sequence[int]) -> Found:
        names = [digits(key).encode() for key in keys]
        for _ in range(_ATTEMPTS):
            known, tiers, holders = self._version, self.tiers, self._holders
            pipeline = self._redis.pipeline(transaction=True)
            pipeline.get(self._key("version"))
            for tier in tiers:
                prefix = self._key(f"b:{tier}:").encode()
                pipeline.mget([prefix + name for name in names])
            version, *rows = self._answer(pipeline.execute)
            if version == known:
                return Found(copies_of(rows), holders, tiers)
            self._learn()
        raise BackendUnavailable("the holders in Redis change all the time")

    def position(self, source: IndexedEngine) -> Stamp | None:
        name = self._key(f"s:{name_of(source)}")
        sequence, ts = self._answer(lambda: self._redis.hmget(name, ["seq", "ts"]))
        return None if sequence is None or ts is None else Stamp(int(float(sequence)), float(ts))

    def clear(self, pod: str) -> int:
        self._run("clear", pod)
        return self.tidy()

    def tidy(self) -> int:
        """Removes the blocks of cleared holders, a page at a time; returns the number of copies
        removed.
        """
        removed = 0
        for number in self._answer(lambda: self._redis.smembers(self._key("retired"))):
            more = 1
            while more:
                copies, more = self._run("sweep", number)
                removed += copies
        return removed

    def pods(self) -> list[str]:
        self._learn()
        return list(self._holders.pods)

    def size(self) -> IndexSize:
        blocks, copies = self._answer(
            lambda: self._redis.mget(self._key("blocks"), self._key("copies"))
        )
        return IndexSize(int(blocks or 0), int(copies or 0))

    def close(self) -> None:
        self._redis.close()

    def _learn(self) -> None:
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.get(self._key("version"))
        pipeline.hgetall(self._key("holders"))
        pipeline.smembers(self._key("adapters"))
        pipeline.smembers(self._key("tiers"))
        version, described, adapters, tiers = self._answer(pipeline.execute)
        holders = Holders(self._most_holders)
        for at, number in enumerate(sorted(described, key=int), 1):
            pod, model, rank, group, scored = msgspec.json.decode(described[number])
            holders.assign(int(number), EngineGroup(IndexedEngine(pod, model, rank), group, scored))
            if at % LEARN_HOLDERS == 0:
                pause_if_possible()
        for entry in adapters:
            number, _, adapter = entry.decode().partition(" ")
            holders.serves(adapter, int(number))
        further = sorted({tier.decode() for tier in tiers} - {GPU, CPU})
        self._version, self._holders, self.tiers = version, holders, [GPU, CPU, *further]

    def _key(self, name: str) -> str:
        return f"{self._namespace}:{name}"

    def _run(self, command: str, *arguments: str | bytes) -> Any:
        namespace = self._namespace
        return self._answer(lambda: self._script(keys=[namespace], args=[command, *arguments]))

    def _answer(self, ask: Callable[[], T]) -> T:
        """Calls Redis in a native thread. BackendUnavailable for no answer, or a late one."""
        # The client's time-outs do not cover the lookup of the host name, which may take half a
        # minute.
        with gevent.Timeout(CALL_TIMEOUTS * self._timeout_s) as late:
            try:
                return wait_off_hub(ask)
            except UNAVAILABLE as error:
                raise BackendUnavailable(f"Redis does not answer: {error}") from error
            except gevent.Timeout as error:
                if error is not late:
                    raise
                raise BackendUnavailable("Redis does not answer in time") from error


def redis_url(url: str) -> str:
    if url.startswith(("valkey://", "valkeys://")):
        url = url.replace("valkey", "redis", 1)  # and rediss
    return url if "://" in url else f"redis://{url}"


def name_of(source: IndexedEngine) -> str:
    return msgspec.json.encode((source.pod, source.model, source.rank)).decode()


def written(operation: Operation, source: IndexedEngine) -> dict[str, object]:
    """Converts an operation to the format of the script."""
    if isinstance(operation, Clear):
        return {"kind": "c"}
    kind = "s" if isinstance(operation, Store) else "o" if isinstance(operation, Offload) else "r"
    engine = "".join(map(digits, operation.engine))
    fields: dict[str, object] = {
        "kind": kind,
        "group": operation.group,
        "tier": operation.tier,
        "engine": engine,
    }
    if isinstance(operation, Store):
        holder = source.pod, source.model, source.rank, operation.group
        fields |= {
            "owned": list(map(packed, operation.owned)),
            "keys": packed(tuple(operation.keys)),
            "joined": [(digits(key), digits(joined)) for key, joined in operation.joined],
            "default": msgspec.json.encode((*holder, operation.group == 0)).decode(),
        }
        if operation.scored is not None:
            fields["described"] = msgspec.json.encode((*holder, operation.scored)).decode()
        if operation.adapter is not None:
            fields["adapter"] = operation.adapter
    return fields


def digits(key: int) -> str:
    """Converts a block key to 16 hexadecimal digits, as in the script."""
    return f"{key:016x}"


def packed(owned: Owned) -> str:
    return digits(owned) if isinstance(owned, int) else "".join(map(digits, owned))


def unpacked(value: bytes) -> tuple[int, ...]:
    return tuple(int(value[start : start + 16], 16) for start in range(0, len(value), 16))


def copies_of(rows: Sequence[Sequence[bytes | None]]) -> list[Copies]:
    """Converts bitmaps to masks, up to the first block without a holder.

    Equal neighbours share a tuple.
    """
    found: list[Copies] = []
    before: tuple[bytes | None, ...] = ()
    copies: Copies = ()
    for bitmaps in zip(*rows, strict=True):
        if bitmaps != before:
            before = bitmaps
            masks = [int.from_bytes(bitmap or b"", "little") for bitmap in bitmaps]
            while masks and not masks[-1]:
                masks.pop()
            copies = tuple(masks)
        if not copies:
            break
        found.append(copies)
    return found
