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

from app.core.base.clock.pause import Slices, pause_if_possible, wait_off_hub
from app.extensions.kv_index.backend import (
    CPU,
    GPU,
    Backend,
    BackendUnavailableError,
    BlockOperation,
    Clear,
    CoveredKeys,
    IndexSize,
    Lookup,
    Offload,
    Operation,
    Outcome,
    Remove,
    Stamp,
    Store,
)
from app.extensions.kv_index.copies import Copies
from app.extensions.kv_index.holders import (
    MAX_HOLDERS,
    EngineGroup,
    HolderLimitError,
    Holders,
    IndexedEngine,
    Window,
)
from app.extensions.kv_index.parts import PART_COST
from config.untrusted import decode_untrusted

SCRIPT = Path(__file__).with_name("redis.lua")
HOLDERS_PER_PAUSE = 512
"""Number of holders read from an answer before other greenlets run."""
UNAVAILABLE_ERRORS = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.ReadOnlyError,
    redis.OutOfMemoryError,
)
MAX_LOOKUP_ATTEMPTS = 5
CALL_TIMEOUTS = 5
"""Maximum duration of a call, in timeouts.

Two to connect and two to answer, as a call is tried twice, and one spare.
"""
KINDS = {Store: "s", Offload: "o", Remove: "r", Clear: "c"}
"""Names of the operations in the script."""
KEY_DIGITS = 16
"""Number of hexadecimal digits of a block key, as in the script."""

T = TypeVar("T")


class RedisBackend(Backend):
    """Index in Redis; `redis.lua` describes the layout of the data.

    `url` has a scheme redis, rediss, valkey, valkeys or unix, or is only host and port. All keys
    begin with `namespace`. A block expires `ttl_s` seconds after its last store, with 0 never;
    `size` still counts expired blocks. `timeout_s` limits one attempt of a call. The first call
    connects. Greenlets may share the backend.
    """

    is_transactional = True  # a batch is one script

    def __init__(
        self,
        url: str,
        ttl_s: int = 0,
        namespace: str = "understudy",
        timeout_s: float = 1.0,
        max_holders: int = MAX_HOLDERS,
    ) -> None:
        """Raises ValueError for an invalid URL."""
        self.tiers = [GPU, CPU]
        self._ttl_s = ttl_s
        self._namespace = namespace
        self._timeout_s = timeout_s
        self._max_holders = max_holders
        self._has_swept = False
        """True after this indexer has removed the blocks that an earlier one left."""
        self._version: bytes | None = None
        """Version of the holders and tiers that this indexer knows."""
        self._holders = Holders(max_holders)
        self._redis = redis.Redis.from_url(
            redis_url(url),
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), retries=1),
        )
        self._script = self._redis.register_script(SCRIPT.read_text("utf-8"))

    def covered_keys(
        self, source: IndexedEngine, engine_keys: Sequence[tuple[int, int]]
    ) -> list[CoveredKeys | None]:
        """See `Backend`."""
        arguments = []
        for group, key in engine_keys:
            arguments += [str(group), hex_digits(key)]
        entries = self._run("owned", source_name(source), *arguments)
        return [None if entry is None else unpack_keys(entry) for entry in entries]

    def apply(
        self, source: IndexedEngine, operations: Sequence[Operation], stamp: Stamp | None = None
    ) -> Outcome:
        """See `Backend`."""
        batch = {
            "epoch": self.epoch,
            "source": source_name(source),
            "pod": source.pod,
            "ttl": self._ttl_s,
            "most": self._max_holders,
            "ops": script_operations(operations, source),
        }
        if stamp is not None:
            batch |= msgspec.structs.asdict(stamp)
        epoch, result, *counts = self._run("apply", msgspec.msgpack.encode(batch))
        self.epoch = epoch.decode()
        if result == b"lost":
            self.loss_count += 1
            raise BackendUnavailableError("Redis has lost its data")
        if result == b"full":
            raise HolderLimitError(f"the limit of {self._max_holders} holders has been reached")
        outcome = Outcome(*counts) if result == b"applied" else Outcome(applied=False)
        is_cleared = any(isinstance(operation, Clear) for operation in operations)
        if stamp is not None and stamp.restart:
            is_cleared = True
        if is_cleared or not self._has_swept:
            self._has_swept = True
            # The batch is applied; the next clear removes the remaining blocks.
            with suppress(BackendUnavailableError):
                outcome.removed += self.sweep()
        return outcome

    def lookup(self, request_keys: Sequence[int]) -> Lookup:
        """See `Backend`."""
        digits = [hex_digits(key).encode() for key in request_keys]
        for _ in range(MAX_LOOKUP_ATTEMPTS):
            known_version = self._version
            tiers = self.tiers
            holders = self._holders
            pipeline = self._redis.pipeline(transaction=True)
            pipeline.get(self._key("version"))
            for tier in tiers:
                prefix = self._key(f"b:{tier}:").encode()
                pipeline.mget([prefix + key for key in digits])
            version, *rows = self._call(pipeline.execute)
            if version == known_version:
                return Lookup(parse_copies(rows), holders, tiers)
            self._read_holders()
        raise BackendUnavailableError("the set of holders in Redis keeps changing")

    def position(self, source: IndexedEngine) -> Stamp | None:
        """See `Backend`."""
        name = self._key(f"s:{source_name(source)}")
        sequence, ts = self._call(lambda: self._redis.hmget(name, ["seq", "ts"]))
        if sequence is None or ts is None:
            return None
        return Stamp(int(float(sequence)), float(ts))

    def clear(self, pod: str) -> int:
        """See `Backend`."""
        self._run("clear", pod)
        return self.sweep()

    def sweep(self) -> int:
        """Removes the blocks of cleared holders, a page at a time; returns the number of copies."""
        removed = 0
        for number in self._call(lambda: self._redis.smembers(self._key("retired"))):
            has_more = 1
            while has_more:
                copies, has_more = self._run("sweep", number)
                removed += copies
        return removed

    def pods(self) -> list[str]:
        """See `Backend`."""
        self._read_holders()
        return list(self._holders.pods)

    def size(self) -> IndexSize:
        """See `Backend`."""
        names = (self._key("blocks"), self._key("copies"))
        blocks, copies = self._call(lambda: self._redis.mget(names))
        return IndexSize(int(blocks or 0), int(copies or 0))

    def close(self) -> None:
        """See `Backend`."""
        self._redis.close()

    def _read_holders(self) -> None:
        """Reads holders, adapters and tiers with their version."""
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.get(self._key("version"))
        pipeline.hgetall(self._key("holders"))
        pipeline.smembers(self._key("adapters"))
        pipeline.smembers(self._key("tiers"))
        version, descriptions, adapters, tiers = self._call(pipeline.execute)
        holders = Holders(self._max_holders)
        for count, number in enumerate(sorted(descriptions, key=int), 1):
            holders.assign(int(number), parse_holder(descriptions[number]))
            if count % HOLDERS_PER_PAUSE == 0:
                pause_if_possible()
        for entry in adapters:
            number, _, adapter = entry.decode().partition(" ")
            holders.add_adapter(adapter, int(number))
        further_tiers = sorted({tier.decode() for tier in tiers} - {GPU, CPU})
        self._version = version
        self._holders = holders
        self.tiers = [GPU, CPU, *further_tiers]

    def _key(self, name: str) -> str:
        return f"{self._namespace}:{name}"

    def _run(self, command: str, *arguments: str | bytes) -> Any:
        """Runs a command of the script."""
        namespace = self._namespace
        return self._call(lambda: self._script(keys=[namespace], args=[command, *arguments]))

    def _call(self, call: Callable[[], T]) -> T:
        """Calls Redis in a native thread.

        Raises:
            BackendUnavailableError: Redis did not respond in time.
        """
        # The client's timeouts do not cover the lookup of the host name, which may take half a
        # minute.
        with gevent.Timeout(CALL_TIMEOUTS * self._timeout_s) as timeout:
            try:
                return wait_off_hub(call)
            except UNAVAILABLE_ERRORS as error:
                raise BackendUnavailableError(f"Redis does not respond: {error}") from error
            except gevent.Timeout as error:
                if error is not timeout:
                    raise
                raise BackendUnavailableError("Redis did not respond in time") from error


def redis_url(url: str) -> str:
    """Converts an address to the schemes of the client."""
    if url.startswith(("valkey://", "valkeys://")):
        url = url.replace("valkey", "redis", 1)  # valkeys becomes rediss
    return url if "://" in url else f"redis://{url}"


def source_name(source: IndexedEngine) -> str:
    """Returns the name of an engine in the script."""
    return msgspec.json.encode((source.pod, source.model, source.rank)).decode()


def script_operations(
    operations: Sequence[Operation], source: IndexedEngine
) -> list[dict[str, object]]:
    """Converts operations to the format of the script; pauses between many."""
    slices = Slices(PART_COST)
    converted = []
    for operation in operations:
        converted.append(script_operation(operation, source))
        if isinstance(operation, BlockOperation):
            slices.spend(len(operation.engine_keys))
    return converted


def script_operation(operation: Operation, source: IndexedEngine) -> dict[str, object]:
    """Converts an operation to the format of the script."""
    fields: dict[str, object] = {"kind": KINDS[type(operation)]}
    if isinstance(operation, Clear):
        return fields
    fields |= {
        "group": operation.group,
        "tier": operation.tier,
        "engine": "".join(map(hex_digits, operation.engine_keys)),
    }
    if not isinstance(operation, Store):
        return fields
    holder = source.pod, source.model, source.rank, operation.group
    fields |= {
        "owned": list(map(pack_keys, operation.covered)),
        "keys": pack_keys(tuple(operation.request_keys)),
        "joined": [(hex_digits(key), hex_digits(joined)) for key, joined in operation.joined],
        "default": msgspec.json.encode((*holder, operation.group == 0)).decode(),
    }
    if operation.scored is not None:
        description: tuple[object, ...] = (*holder, operation.scored)
        if operation.window is not None:
            description += (operation.window.blocks, operation.window.stride)
        fields["described"] = msgspec.json.encode(description).decode()
    if operation.adapter is not None:
        fields["adapter"] = operation.adapter
    return fields


def parse_holder(description: bytes) -> EngineGroup:
    """Converts a holder from the format of the script."""
    pod, model, rank, group, scored, *sizes = decode_untrusted(description)
    window = Window(*sizes) if sizes else None
    return EngineGroup(IndexedEngine(pod, model, rank), group, scored, window)


def hex_digits(key: int) -> str:
    """Converts a block key to hexadecimal digits."""
    return f"{key:016x}"


def pack_keys(covered: CoveredKeys) -> str:
    """Converts request keys to the format of the script."""
    return hex_digits(covered) if isinstance(covered, int) else "".join(map(hex_digits, covered))


def unpack_keys(digits: bytes) -> tuple[int, ...]:
    """Converts request keys from the format of the script."""
    starts = range(0, len(digits), KEY_DIGITS)
    return tuple(int(digits[start : start + KEY_DIGITS], 16) for start in starts)


def parse_copies(rows: Sequence[Sequence[bytes | None]]) -> list[Copies]:
    """Converts bitmaps, by tier and block, to masks, up to the first block without a holder.

    Equal neighbors share a tuple.
    """
    prefix: list[Copies] = []
    previous: tuple[bytes | None, ...] = ()
    copies: Copies = ()
    for bitmaps in zip(*rows, strict=True):
        if bitmaps != previous:
            previous = bitmaps
            masks = [int.from_bytes(bitmap or b"", "little") for bitmap in bitmaps]
            while masks and not masks[-1]:
                masks.pop()
            copies = tuple(masks)
        if not copies:
            break
        prefix.append(copies)
    return prefix
