"""Streams beside Generate: KV events, the tokenizer's files, a watched health; and reflection."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import gevent
from gevent.lock import BoundedSemaphore
from gevent.queue import Queue
from google.protobuf import descriptor_pool
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from app.base.clock.pause import call_off_hub
from app.engine.kvcache.events import BlockRemoved, BlockStored, EventBatch, KVEvent
from app.engine.kvcache.hashing import low64
from app.engine.kvcache.publisher import EventSender
from app.serving.api.grpc.messages import SERVICE, Proto, answer, common, framed_message, read, unary
from app.serving.http.connection import StreamTransport
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError, not_found
from app.serving.http.response import StreamingBody
from app.serving.http.rpc import RpcCode, RpcMethod, RpcOutcome, RpcResponse
from config.settings import Settings

health: Proto = health_pb2
reflected: Proto = reflection_pb2
HEALTH = "grpc.health.v1.Health"
REFLECTIONS = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""The same messages under two names: newer clients try the first, and then the other."""
LOOK_S = 0.2
"""Seconds between two checks of a watched health, or of a client that reads slowly."""
MOST_WATCHERS = 256
MOST_SUBSCRIBERS = 32
"""Most subscribers at a time: each costs a message per batch."""
MOST_WAITING = 1024
"""Most batches that a subscriber may lag behind; then its stream ends. All subscribers share them."""
NO_EVENTS = "There are no KV events: the server has no prefix cache of its own, or --enable-kvcache is off."
FILES = ("*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt")
"""Files of a tokenizer in its folder, which may also hold an index of weights."""
CHUNK_BYTES = 1 << 16
MOST_BYTES = 64 << 20
"""Most bytes of all files of a tokenizer together."""


def unimplemented(path: str, text: str) -> RpcMethod:
    return RpcMethod(
        path, lambda context: RpcResponse(b"", None, RpcOutcome(RpcCode.UNIMPLEMENTED, text), 501)
    )


def _counted(open_streams: set[RpcResponse], most: int, response: RpcResponse) -> RpcResponse:
    """Keeps a response in `open_streams` until it is closed. ApiError 429 above `most`."""
    if len(open_streams) >= most:
        raise ApiError(429, "RateLimitError", f"There are {most} of these streams already.")
    open_streams.add(response)
    response.on_close(partial(open_streams.discard, response))
    return response


class MessageFeed(StreamingBody):
    """A stream of messages without end, which a greenlet writes while the client reads."""

    __slots__ = ("_greenlet", "_messages")
    endless = True

    def __init__(self, messages: Iterator[Message]) -> None:
        super().__init__()
        self._messages = messages
        self._greenlet: gevent.Greenlet | None = None

    def attach(self, transport: StreamTransport) -> None:
        transport.start(self)
        self._greenlet = gevent.spawn(self._write, transport)

    def next_slice(self) -> tuple[bytes, bool, bool]:
        """Returns nothing: the greenlet goes on when a call lags no longer (see `StreamSource`)."""
        return b"", False, False

    def leave(self) -> None:
        self.close()

    def _write(self, transport: StreamTransport) -> None:
        for message in self._messages:
            while transport.lags and transport.is_open:
                gevent.sleep(LOOK_S)
            if not transport.is_open:
                return
            data = framed_message(message)
            self.bytes_sent += len(data)
            transport.write(data)
        transport.write(b"", True)

    def close(self) -> None:
        if self._greenlet is not None:
            self._greenlet.kill(block=False)


def events_method(publisher: EventSender | None) -> RpcMethod:
    """SubscribeKvEvents; UNIMPLEMENTED without a publisher."""
    path = f"/{SERVICE}/SubscribeKvEvents"
    if publisher is None:
        return unimplemented(path, NO_EVENTS)
    subscribers: set[RpcResponse] = set()

    def subscribe(context: RequestContext) -> RpcResponse:
        """Every batch from now on, numbered as on the ZMQ socket. Older batches are not kept here."""
        first = read(context, common.SubscribeKvEventsRequest).start_sequence_number
        following = publisher.next_sequence
        if first not in (0, following):
            text = f"Batch {first} is not kept; the next one is {following}."
            raise ApiError(412, "PreconditionFailed", text, "start_sequence_number")
        outcome, waiting = RpcOutcome(), Queue[tuple[int, EventBatch]]()

        def take(topic: str, sequence: int, batch: EventBatch) -> None:
            if waiting.qsize() <= MOST_WAITING:
                waiting.put((sequence, batch))

        response = RpcResponse(MessageFeed(_batches(waiting, outcome)), None, outcome)
        _counted(subscribers, MOST_SUBSCRIBERS, response)
        publisher.listen(take)
        response.on_close(partial(publisher.forget, take))
        return response

    return RpcMethod(path, subscribe)


def _batches(waiting: Queue[tuple[int, EventBatch]], outcome: RpcOutcome) -> Iterator[Message]:
    """Yields a message for each batch; a subscriber that is too slow has an error as its end."""
    while waiting.qsize() <= MOST_WAITING:
        yield batch_message(*waiting.get())
    outcome.fail(ApiError(429, "RateLimitError", "The subscriber is too slow."))


def batch_message(sequence: int, batch: EventBatch) -> Message:
    """Returns a `KvEventBatch`; hashes are the low 64 bits, signed."""
    events = [{"event_id": number, **_event(event)} for number, event in enumerate(batch.events)]
    return common.KvEventBatch(
        sequence_number=sequence, timestamp=batch.ts, dp_rank=batch.data_parallel_rank, events=events
    )


def _event(event: KVEvent) -> dict[str, object]:
    """Returns the fields of a `KvCacheEvent`; None leaves a field out."""
    if not isinstance(event, BlockStored | BlockRemoved):
        return {"cleared": {}}
    names = _signed(event.block_hashes)
    device = None if event.medium is None else common.KV_CACHE_TIER_DEVICE
    place = {"medium": event.medium, "tier": device, "group_idx": event.group_idx}
    if isinstance(event, BlockRemoved):
        return {"removed": {"block_hashes": names, **place}}
    size, parent, keys = event.block_size, event.parent_block_hash, event.extra_keys
    blocks = [
        {
            "block_hash": name,
            "token_ids": event.token_ids[number * size : (number + 1) * size],
            "block_size": size,
            "lora_id": event.lora_id,
            "extra_keys": [_key(key) for key in (keys[number] if keys else None) or ()],
        }
        for number, name in enumerate(names)
    ]
    kind, adapter = event.kv_cache_spec_kind, event.lora_name
    parent_name = None if parent is None else _signed([parent])[0]
    stored = {"blocks": blocks, "parent_block_hash": parent_name, **place}
    return {"stored": {**stored, "kv_cache_spec_kind": kind, "lora_name": adapter}}


def _key(key: object) -> dict[str, object]:
    if isinstance(key, Sequence) and not isinstance(key, str | bytes):
        return {"multimodal": {"identifier": key[0], "offset": key[1]}} if len(key) == 2 else {}
    kinds = {str: "text", bytes: "blob", int: "number"}
    return {kinds[type(key)]: key} if type(key) in kinds else {}


def _signed(names: Sequence[int | bytes]) -> list[int]:
    numbers = (name if isinstance(name, int) else low64(name) for name in names)
    return [number - (1 << 64) if number >= 1 << 63 else number for number in numbers]


def tokenizer_method(settings: Settings) -> RpcMethod:
    """GetTokenizer, for a gateway that tokenizes itself. As in vLLM it needs a local folder."""
    folder = Path(settings.tokenizer.tokenizer or settings.model.model)
    made: list[bytes] = []
    one_at_a_time = BoundedSemaphore(1)

    def get_tokenizer(context: RequestContext) -> RpcResponse:
        """The archive in chunks, which is made once for all clients."""
        read(context, common.GetTokenizerRequest)
        with one_at_a_time:
            if not made:
                made.append(call_off_hub(zipped, folder))
        return RpcResponse(made[0])

    return RpcMethod(f"/{SERVICE}/GetTokenizer", get_tokenizer)


def zipped(folder: Path) -> bytes:
    """Returns an archive of the tokenizer's files as messages; the last has its SHA-256.

    ApiError 412 for no files, or too large ones.
    """
    paths = sorted({path for pattern in FILES for path in folder.glob(pattern)})
    paths = [path for path in paths if path.is_file() and not path.name.endswith(".index.json")]
    if not paths or sum(path.stat().st_size for path in paths) > MOST_BYTES:
        text = "The server's tokenizer is no local folder (--tokenizer names one), or has too large files."
        raise ApiError(412, "PreconditionFailed", text)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as into:
        for path in paths:
            # An entry without a date: the same files give the same archive.
            into.writestr(zipfile.ZipInfo(path.name), path.read_bytes(), zipfile.ZIP_DEFLATED)
    data = archive.getvalue()
    chunks = [
        common.GetTokenizerChunk(data=data[at : at + CHUNK_BYTES]) for at in range(0, len(data), CHUNK_BYTES)
    ]
    chunks[-1].sha256 = hashlib.sha256(data).hexdigest()
    return b"".join(map(framed_message, chunks))


def health_methods(is_ready: Callable[[], bool]) -> list[RpcMethod]:
    """Check and Watch, of the server as a whole ("") and of the engine's service."""
    watchers: set[RpcResponse] = set()
    response = health.HealthCheckResponse

    def status(service: str) -> int:
        if service not in ("", SERVICE):
            return int(response.SERVICE_UNKNOWN)
        return int(response.SERVING if is_ready() else response.NOT_SERVING)

    def check(asked: Proto) -> Message:
        found = status(asked.service)
        if found == response.SERVICE_UNKNOWN:
            raise not_found("No such service is known here.")
        return response(status=found)

    def changes(service: str) -> Iterator[Message]:
        told = None
        while True:
            if (found := status(service)) != told:
                told = found
                yield response(status=found)
            gevent.sleep(LOOK_S)

    def watch(context: RequestContext) -> RpcResponse:
        """The health now, and at every change."""
        service = read(context, health.HealthCheckRequest).service
        return _counted(watchers, MOST_WATCHERS, RpcResponse(MessageFeed(changes(service))))

    checked = unary(f"/{HEALTH}/Check", health.HealthCheckRequest, check)
    return [checked, RpcMethod(f"/{HEALTH}/Watch", watch)]


def reflection_methods(services: Sequence[str]) -> list[RpcMethod]:
    """Reflection, for `grpcurl`: the names of `services`, and the files that declare them."""
    pool: Proto = descriptor_pool.Default()
    reply: Proto = reflected.ServerReflectionResponse

    def found(asked: Proto) -> Proto:
        kind = asked.WhichOneof("message_request")
        if kind == "list_services":
            return reply(list_services_response={"service": [{"name": name} for name in services]})
        if kind in ("file_by_filename", "file_containing_symbol"):
            of = pool.FindFileByName if kind == "file_by_filename" else partial(_containing, pool)
            files = _with_imports(of(getattr(asked, kind)))
            return reply(file_descriptor_response={"file_descriptor_proto": [*files.values()]})
        return failed(RpcCode.UNIMPLEMENTED, "Extensions are not used here.")

    def failed(code: RpcCode, text: str) -> Proto:
        return reply(error_response={"error_code": int(code), "error_message": text})

    def answered(context: RequestContext) -> RpcResponse:
        """Answers one question of a call that may have many."""
        asked = read(context, reflected.ServerReflectionRequest)
        try:
            told = found(asked)
        except KeyError:
            told = failed(RpcCode.NOT_FOUND, "This is not known here.")
        told.valid_host = asked.host
        told.original_request.CopyFrom(asked)
        return answer(told)

    paths = [f"/{service}/ServerReflectionInfo" for service in REFLECTIONS]
    return [RpcMethod(path, answered, each=True) for path in paths]


def _containing(pool: Proto, symbol: str) -> Proto:
    """Returns the file that declares a symbol, which may be a method of a service. KeyError without one."""
    try:
        return pool.FindFileContainingSymbol(symbol)
    except KeyError:
        return pool.FindServiceByName(symbol.rpartition(".")[0]).file


def _with_imports(file: Proto) -> dict[str, bytes]:
    """Returns a file and all its imports by their names."""
    found = {file.name: file.serialized_pb}
    for imported in file.dependencies:
        found |= _with_imports(imported)
    return found
