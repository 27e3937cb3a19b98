"""All methods of a server over gRPC but Generate: facts for gateways, Embed, streams, health, reflection."""

from __future__ import annotations

import hashlib
import io
import os
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
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
from app.engine.core.lifecycle import Operations
from app.engine.core.sequence import EngineClient
from app.engine.kvcache.events import BlockRemoved, BlockStored, EventBatch, KVEvent
from app.engine.kvcache.hashing import low64
from app.engine.kvcache.publisher import EventSender
from app.serving.api.grpc.generate import generate_method
from app.serving.api.grpc.messages import (
    LOOK_S,
    MOST_MESSAGE_BYTES,
    SERVICE,
    EndlessFeed,
    Proto,
    answer,
    common,
    engine,
    framed_message,
    read,
    unary,
)
from app.serving.api.pipeline import RequestPipeline
from app.serving.api.pooling import EMBEDDINGS, PoolingRunner, served_routes
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError, bad_request, not_found
from app.serving.http.rpc import RpcCode, RpcMethod, RpcOutcome, RpcResponse, RpcService
from app.serving.protocol.pooling import EmbeddingRequest
from app.serving.protocol.validation import check_prompt_length
from app.text.base import Tokenizer
from config import VLLM_VERSION
from config.settings import ModelSettings, Settings

health: Proto = health_pb2
reflected: Proto = reflection_pb2
HEALTH = "grpc.health.v1.Health"
REFLECTIONS = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""The same messages under two names: newer clients try the first, and then the other."""
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
LOOK_AGAIN_S = 0.01
LONGEST_WAIT_S = 60.0
"""Longest wait, in seconds, until a server is idle and its cache can be flushed."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The server as gateways see it. `usage` is the share of the KV cache in use, from 0 to 1."""

    settings: Callable[[], Settings]
    engine: EngineClient
    lifecycle: Operations
    tokenizer: Tokenizer
    rank: int
    usage: Callable[[], float]
    started_s: float
    """Start of the server, in seconds of the monotonic clock."""

    def methods(self) -> list[RpcMethod]:
        handlers: dict[str, tuple[type[Message], Callable[[Proto], Message]]] = {
            "HealthCheck": (engine.HealthCheckRequest, self._health_check),
            "Abort": (engine.AbortRequest, self._abort),
            "GetModelInfo": (engine.GetModelInfoRequest, self._model_info),
            "GetServerInfo": (engine.GetServerInfoRequest, self._server_info),
            "GetLoads": (engine.GetLoadsRequest, self._loads),
            "FlushCache": (common.FlushCacheRequest, self._flush_cache),
            "StartProfile": (common.StartProfileRequest, self._profile),
            "StopProfile": (common.StopProfileRequest, self._profile),
        }
        return [unary(f"/{SERVICE}/{name}", *handler) for name, handler in handlers.items()]

    def _health_check(self, asked: Message) -> Message:
        healthy = self.engine.healthy
        return engine.HealthCheckResponse(
            healthy=healthy, message="Health" if healthy else "Engine is not alive"
        )

    def _abort(self, asked: Proto) -> Message:
        """Ends requests by their ids, with the reason `abort`. Unknown ids are ignored."""
        if asked.request_ids:
            self.engine.interrupt(frozenset(asked.request_ids))
        return engine.AbortResponse()

    def _model_info(self, asked: Message) -> Message:
        settings = self.settings()
        model, tokenizer = settings.model, self.tokenizer
        return engine.GetModelInfoResponse(
            model_path=model.model,
            is_generation=model.task == "generate",
            max_context_length=model.max_model_len,
            vocab_size=tokenizer.vocab_size or 0,
            served_model_name=model.served_names[0],
            tokenizer_path=settings.tokenizer.tokenizer or model.model,
            eos_token_ids=sorted(tokenizer.eos_token_ids),
            max_req_input_len=model.max_model_len,
        )

    def _server_info(self, asked: Message) -> Message:
        """The server, as a router needs to know it. There is no connector, and no processor of media."""
        settings = self.settings()
        return engine.GetServerInfoResponse(
            active_requests=self.engine.running + self.engine.waiting,
            is_paused=self.lifecycle.paused,
            uptime_seconds=time.monotonic() - self.started_s,
            server_type="vllm-grpc",
            data_parallel_size=settings.server.data_parallel_size,
            kv_cache_dtype="auto",
            block_size=settings.kvcache.block_size,
            pairing_protocol=os.environ.get("SMG_PAIRING_PROTOCOL", ""),
            max_num_seqs=settings.scheduling.max_num_seqs,
            engine_reasoning_parser=settings.reply.reasoning_parser,
            constrained_decoding_start="first_token",
        )

    def _loads(self, asked: Proto) -> Message:
        """Running and waiting requests; `include` has only `core`. ApiError 400 for another rank."""
        settings = self.settings()
        if asked.HasField("dp_rank") and asked.dp_rank != self.rank:
            text = f"dp_rank is {asked.dp_rank}, but this port serves rank {self.rank} only."
            raise bad_request(text, "dp_rank")
        running, waiting, usage = self.engine.running, self.engine.waiting, self.usage()
        capacity, most = settings.kvcache.kv_cache_size * settings.kvcache.block_size, settings.scheduling
        load = engine.SchedulerLoad(
            dp_rank=self.rank,
            num_running_reqs=running,
            num_waiting_reqs=waiting,
            num_total_reqs=running + waiting,
            num_used_tokens=round(usage * capacity),
            max_total_num_tokens=min(capacity, 2**31 - 1),
            token_usage=usage,
            utilization=min(1.0, running / most.max_num_seqs),
            max_running_requests=most.max_num_seqs,
        )
        now = datetime.now(UTC).isoformat()
        return engine.GetLoadsResponse(timestamp=now, version=VLLM_VERSION, dp_rank_count=1, loads=[load])

    def _flush_cache(self, asked: Proto) -> Message:
        """Empties the cache once nothing runs. Waits up to `timeout_s`, at most `LONGEST_WAIT_S`."""
        until_s = time.monotonic() + min(max(0.0, asked.timeout_s), LONGEST_WAIT_S)
        while self.engine.running and time.monotonic() < until_s:
            gevent.sleep(LOOK_AGAIN_S)
        done = not self.engine.running and self.lifecycle.reset_prefix_cache()
        message = "" if done else "Requests are running: the cache is kept."
        return common.FlushCacheResponse(success=done, message=message)

    def _profile(self, asked: Message) -> Message:
        profiling = self.settings().server.profiling
        message = "" if profiling else "The server was started without profiling."
        return common.ProfileResponse(success=profiling, message=message)


def embed_method(pipeline: RequestPipeline, settings: ModelSettings) -> RpcMethod:
    path = f"/{SERVICE}/Embed"
    if EMBEDDINGS not in served_routes(settings):
        return unimplemented(path, "This model does not embed: that needs --task embed.")
    runner = PoolingRunner(pipeline, settings)

    def embed(context: RequestContext) -> RpcResponse:
        """The vector that POST /v1/embeddings gives for the same tokens."""
        message = read(context, engine.EmbedRequest)
        given = message.tokenized.input_ids
        if not given:
            raise bad_request("tokenized input is needed", "tokenized")
        check_prompt_length(len(given), pipeline.limits.max_model_len)
        request = EmbeddingRequest(input=list(given), request_id=message.request_id)
        job = runner.pool(context, request, "", "embed")
        [[vector]] = runner.rows(request, job, "embed")
        found = engine.EmbedResponse(prompt_tokens=job.prompt_tokens, embedding_dim=len(vector))
        found.embedding.extend(vector)
        return answer(found)

    return RpcMethod(path, embed)


def rpc_service(
    pipeline: RequestPipeline, facts: ServerFacts, is_ready: Callable[[], bool], publisher: EventSender | None
) -> RpcService:
    """Returns all methods; calls that the served model cannot answer are UNIMPLEMENTED."""
    settings = facts.settings()
    generate = unimplemented(f"/{SERVICE}/Generate", "This model pools; it does not generate.")
    methods = [
        generate_method(pipeline) if settings.model.task == "generate" else generate,
        embed_method(pipeline, settings.model),
        events_method(publisher),
        tokenizer_method(settings),
        *facts.methods(),
        *health_methods(is_ready),
        *reflection_methods([SERVICE, HEALTH, *REFLECTIONS]),
    ]
    most = min(MOST_MESSAGE_BYTES, settings.server.max_request_body_size_mb << 20)
    return RpcService({method.path: method for method in methods}, most)


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

        response = RpcResponse(EndlessFeed(_batches(waiting, outcome)), None, outcome)
        _counted(subscribers, MOST_SUBSCRIBERS, response)
        publisher.listen(take)
        response.on_close(partial(publisher.forget, take))
        return response

    return RpcMethod(path, subscribe)


def _batches(waiting: Queue[tuple[int, EventBatch]], outcome: RpcOutcome) -> Iterator[Message]:
    """Yields a `KvEventBatch` for each batch; a subscriber that is too slow has an error as its end."""
    while waiting.qsize() <= MOST_WAITING:
        number, batch = waiting.get()
        yield common.KvEventBatch(
            sequence_number=number,
            timestamp=batch.ts,
            dp_rank=batch.data_parallel_rank,
            events=[{"event_id": at, **_event(event)} for at, event in enumerate(batch.events)],
        )
    outcome.fail(ApiError(429, "RateLimitError", "The subscriber is too slow."))


def _event(event: KVEvent) -> dict[str, object]:
    """Returns the fields of a `KvCacheEvent`; hashes are the low 64 bits, signed; None leaves a field out."""
    if not isinstance(event, BlockStored | BlockRemoved):
        return {"cleared": {}}
    names = list(map(_signed, event.block_hashes))
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
    stored = {"blocks": blocks, "parent_block_hash": None if parent is None else _signed(parent), **place}
    kind, adapter = event.kv_cache_spec_kind, event.lora_name
    return {"stored": {**stored, "kv_cache_spec_kind": kind, "lora_name": adapter}}


def _key(key: object) -> dict[str, object]:
    if isinstance(key, Sequence) and not isinstance(key, str | bytes):
        return {"multimodal": {"identifier": key[0], "offset": key[1]}} if len(key) == 2 else {}
    kinds = {str: "text", bytes: "blob", int: "number"}
    return {kinds[type(key)]: key} if type(key) in kinds else {}


def _signed(name: int | bytes) -> int:
    number = name if isinstance(name, int) else low64(name)
    return number - (1 << 64) if number >= 1 << 63 else number


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
        return _counted(watchers, MOST_WATCHERS, RpcResponse(EndlessFeed(changes(service))))

    checked = unary(f"/{HEALTH}/Check", health.HealthCheckRequest, check)
    return [checked, RpcMethod(f"/{HEALTH}/Watch", watch)]


def reflection_methods(services: Sequence[str]) -> list[RpcMethod]:
    """Reflection, for `grpcurl`: the names of `services`, and the files that declare them."""
    pool: Proto = descriptor_pool.Default()

    def found(kind: str, name: str) -> dict[str, object]:
        if kind == "list_services":
            return {"list_services_response": {"service": [{"name": name} for name in services]}}
        try:
            files = _with_imports(
                pool.FindFileByName(name) if kind == "file_by_filename" else _of(pool, name)
            )
            return {"file_descriptor_response": {"file_descriptor_proto": [*files.values()]}}
        except KeyError:
            code, text = RpcCode.NOT_FOUND, "This is not known here."
            return {"error_response": {"error_code": int(code), "error_message": text}}

    def answered(context: RequestContext) -> RpcResponse:
        """Answers one question of a call that may have many."""
        asked = read(context, reflected.ServerReflectionRequest)
        kind = asked.WhichOneof("message_request")
        told = found(kind, getattr(asked, kind or "host"))
        return answer(
            reflected.ServerReflectionResponse(valid_host=asked.host, original_request=asked, **told)
        )

    paths = [f"/{service}/ServerReflectionInfo" for service in REFLECTIONS]
    return [RpcMethod(path, answered, each=True) for path in paths]


def _of(pool: Proto, symbol: object) -> Proto:
    """Returns the file that declares a symbol, which may be a method of a service. KeyError without one."""
    name = symbol if isinstance(symbol, str) else ""  # extensions are not used here
    try:
        return pool.FindFileContainingSymbol(name)
    except KeyError:
        return pool.FindServiceByName(name.rpartition(".")[0]).file


def _with_imports(file: Proto) -> dict[str, bytes]:
    """Returns a file and all its imports by their names."""
    found = {file.name: file.serialized_pb}
    for imported in file.dependencies:
        found |= _with_imports(imported)
    return found
