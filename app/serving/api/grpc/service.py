"""All methods of a server over gRPC but Generate:

facts for gateways, Embed, streams, health, reflection.
"""

import hashlib
import io
import os
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeAlias

import gevent
from gevent.lock import BoundedSemaphore
from gevent.queue import Queue
from google.protobuf import descriptor_pool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from app.base.clock.pause import call_off_hub
from app.engine.core.lifecycle import Operations
from app.engine.kvcache.events import BlockRemoved, BlockStored, EventBatch, KVEvent
from app.engine.kvcache.hashing import low64
from app.engine.kvcache.publisher import EventSender
from app.serving.api.grpc.generate import (
    MOST_MESSAGE_BYTES,
    SERVICE,
    Generator,
    Proto,
    common,
    engine,
    framed_message,
    read,
)
from app.serving.api.pipeline import RequestPipeline
from app.serving.api.pooling import EMBEDDINGS, served_routes
from app.serving.api.pooling_runner import PoolingRunner
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError, bad_request, not_found, not_implemented
from app.serving.http.route import (
    MessageFeed,
    RpcCode,
    RpcMethod,
    RpcOutcome,
    RpcResponse,
    RpcService,
)
from app.serving.protocol.pooling import EmbeddingRequest
from app.serving.protocol.validation import check_prompt_length
from config import VLLM_VERSION

health: Proto = health_pb2
reflected: Proto = reflection_pb2
HEALTH = "grpc.health.v1.Health"
POOL: Proto = descriptor_pool.Default()
REFLECTIONS = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""The same messages under two names: newer clients try the first, and then the other."""
MOST_WATCHERS = 256
MOST_SUBSCRIBERS = 32
"""Most subscribers at a time: each costs a message per batch."""
MOST_WAITING = 1024
"""Most batches that a subscriber may lag behind; then its stream ends.

All subscribers share them.
"""
NO_EVENTS = (
    "There are no KV events: the server has no prefix cache of its own, or --enable-kvcache is off."
)
FILES = ("*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt")
"""Files of a tokenizer in its folder, which may also hold an index of weights."""
CHUNK_BYTES = 1 << 16
MOST_BYTES = 64 << 20
"""Most bytes of all files of a tokenizer together."""
LOOK_AGAIN_S, LOOK_S = 0.01, 0.2
"""Seconds between two checks of a server that gets idle, and of a watched health."""
LONGEST_WAIT_S = 60.0
"""Longest wait, in seconds, until a server is idle and its cache can be flushed."""
Told: TypeAlias = Message | RpcResponse


class EngineService:
    """All methods of one server. `usage` is the share of the KV cache in use, from 0 to 1.

    Calls that the served model cannot answer are UNIMPLEMENTED.
    """

    def __init__(
        self,
        pipeline: RequestPipeline,
        lifecycle: Operations,
        is_ready: Callable[[], bool],
        usage: Callable[[], float],
        publisher: EventSender | None,
    ) -> None:
        self._pipeline, self._engine, self._lifecycle = (
            pipeline,
            pipeline.responder.engine,
            lifecycle,
        )
        self._is_ready, self._usage, self._publisher = is_ready, usage, publisher
        self._started_s = time.monotonic()
        self._generate, self._runner = (
            Generator(pipeline),
            PoolingRunner(pipeline, pipeline.settings.model),
        )
        self._archive: list[bytes] = []
        self._one_at_a_time = BoundedSemaphore(1)
        self._watchers, self._subscribers = set[RpcResponse](), set[RpcResponse]()

    def methods(self) -> RpcService:
        handlers: dict[str, Callable[[Proto, RequestContext], Told]] = {
            f"{SERVICE}/Generate": self._generate.generate,
            f"{SERVICE}/Embed": self._embed,
            f"{SERVICE}/HealthCheck": self._health_check,
            f"{SERVICE}/Abort": self._abort,
            f"{SERVICE}/GetModelInfo": self._model_info,
            f"{SERVICE}/GetServerInfo": self._server_info,
            f"{SERVICE}/GetLoads": self._loads,
            f"{SERVICE}/GetTokenizer": self._tokenizer,
            f"{SERVICE}/SubscribeKvEvents": self._subscribe,
            f"{SERVICE}/FlushCache": self._flush_cache,
            f"{SERVICE}/StartProfile": self._profile,
            f"{SERVICE}/StopProfile": self._profile,
            f"{HEALTH}/Check": self._check,
            f"{HEALTH}/Watch": self._watch,
            **{f"{service}/ServerReflectionInfo": self._reflect for service in REFLECTIONS},
        }
        most = min(
            MOST_MESSAGE_BYTES, self._pipeline.settings.server.max_request_body_size_mb << 20
        )
        return RpcService(
            {f"/{name}": _method(name, handler) for name, handler in handlers.items()}, most
        )

    def _embed(self, asked: Proto, context: RequestContext) -> Message:
        """The vector that POST /v1/embeddings gives for the same tokens."""
        given, runner = asked.tokenized.input_ids, self._runner
        if EMBEDDINGS not in served_routes(self._pipeline.settings.model):
            raise not_implemented("This model does not embed: that needs --task embed.")
        if not given:
            raise bad_request("tokenized input is needed", "tokenized")
        check_prompt_length(len(given), self._pipeline.limits.max_model_len)
        request = EmbeddingRequest(input=list(given), request_id=asked.request_id)
        job = runner.run(context, request, "", "embed")
        [[vector]] = runner.rows(request, job, "embed")
        return engine.EmbedResponse(
            prompt_tokens=job.prompt_tokens, embedding_dim=len(vector), embedding=vector
        )

    def _health_check(self, asked: Message, context: RequestContext) -> Message:
        healthy = self._engine.healthy
        text = "Health" if healthy else "Engine is not alive"
        return engine.HealthCheckResponse(healthy=healthy, message=text)

    def _abort(self, asked: Proto, context: RequestContext) -> Message:
        """Ends requests by their ids, with the reason `abort`. Unknown ids are ignored."""
        if asked.request_ids:
            self._engine.interrupt(frozenset(asked.request_ids))
        return engine.AbortResponse()

    def _model_info(self, asked: Message, context: RequestContext) -> Message:
        settings = self._pipeline.settings
        model, tokenizer = settings.model, self._pipeline.tokenizer
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

    def _server_info(self, asked: Message, context: RequestContext) -> Message:
        """The server, as a router needs to know it.

        There is no connector, and no processor of media.
        """
        settings = self._pipeline.settings
        return engine.GetServerInfoResponse(
            active_requests=self._engine.running + self._engine.waiting,
            is_paused=self._lifecycle.paused,
            uptime_seconds=time.monotonic() - self._started_s,
            server_type="vllm-grpc",
            data_parallel_size=settings.server.data_parallel_size,
            kv_cache_dtype="auto",
            block_size=settings.kvcache.block_size,
            pairing_protocol=os.environ.get("SMG_PAIRING_PROTOCOL", ""),
            max_num_seqs=settings.scheduling.max_num_seqs,
            engine_reasoning_parser=settings.reply.reasoning_parser,
            constrained_decoding_start="first_token",
        )

    def _loads(self, asked: Proto, context: RequestContext) -> Message:
        """Running and waiting requests; `include` has only `core`.

        ApiError 400 for another rank.
        """
        settings = self._pipeline.settings
        if asked.HasField("dp_rank") and asked.dp_rank != self._pipeline.rank:
            text = (
                f"dp_rank is {asked.dp_rank}, but this port serves rank {self._pipeline.rank} only."
            )
            raise bad_request(text, "dp_rank")
        running, waiting, usage = self._engine.running, self._engine.waiting, self._usage()
        capacity, most = (
            settings.kvcache.kv_cache_size * settings.kvcache.block_size,
            settings.scheduling,
        )
        load = engine.SchedulerLoad(
            dp_rank=self._pipeline.rank,
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
        return engine.GetLoadsResponse(
            timestamp=now, version=VLLM_VERSION, dp_rank_count=1, loads=[load]
        )

    def _flush_cache(self, asked: Proto, context: RequestContext) -> Message:
        """Empties the cache once nothing runs.

        Waits up to `timeout_s`, at most `LONGEST_WAIT_S`.
        """
        until_s = time.monotonic() + min(max(0.0, asked.timeout_s), LONGEST_WAIT_S)
        while self._engine.running and time.monotonic() < until_s:
            gevent.sleep(LOOK_AGAIN_S)
        done = not self._engine.running and self._lifecycle.reset_prefix_cache()
        message = "" if done else "Requests are running: the cache is kept."
        return common.FlushCacheResponse(success=done, message=message)

    def _profile(self, asked: Message, context: RequestContext) -> Message:
        profiling = self._pipeline.settings.server.profiling
        message = "" if profiling else "The server was started without profiling."
        return common.ProfileResponse(success=profiling, message=message)

    def _tokenizer(self, asked: Message, context: RequestContext) -> RpcResponse:
        """The files for a gateway that tokenizes itself, in chunks; made once for all clients."""
        settings = self._pipeline.settings
        with self._one_at_a_time:
            if not self._archive:
                folder = Path(settings.tokenizer.tokenizer or settings.model.model)
                self._archive.append(call_off_hub(zipped, folder))
        return RpcResponse(self._archive[0])

    def _subscribe(self, asked: Proto, context: RequestContext) -> RpcResponse:
        """Every batch from now on, numbered as on the ZMQ socket.

        Older batches are not kept here.
        """
        first, publisher = asked.start_sequence_number, self._publisher
        if publisher is None:
            raise not_implemented(NO_EVENTS)
        if first not in (0, publisher.next_sequence):
            text = f"Batch {first} is not kept; the next one is {publisher.next_sequence}."
            raise ApiError(412, "PreconditionFailed", text, "start_sequence_number")
        outcome, waiting = RpcOutcome(), Queue[tuple[int, EventBatch]]()

        def take(topic: str, sequence: int, batch: EventBatch) -> None:
            if waiting.qsize() <= MOST_WAITING:
                waiting.put((sequence, batch))

        response = RpcResponse(MessageFeed(_batches(waiting, outcome), endless=True), None, outcome)
        _counted(self._subscribers, MOST_SUBSCRIBERS, response)
        publisher.listen(take)
        response.on_close(partial(publisher.forget, take))
        return response

    def _status(self, service: str) -> int:
        """Returns the health of the server as a whole (""), or of the engine's service."""
        response = health.HealthCheckResponse
        known = response.SERVING if self._is_ready() else response.NOT_SERVING
        return int(known if service in ("", SERVICE) else response.SERVICE_UNKNOWN)

    def _check(self, asked: Proto, context: RequestContext) -> Message:
        found = self._status(asked.service)
        if found == health.HealthCheckResponse.SERVICE_UNKNOWN:
            raise not_found("No such service is known here.")
        return health.HealthCheckResponse(status=found)

    def _watch(self, asked: Proto, context: RequestContext) -> RpcResponse:
        """The health now, and at every change."""

        def changes() -> Iterator[bytes]:
            told = None
            while True:
                if (found := self._status(asked.service)) != told:
                    told = found
                    yield framed_message(health.HealthCheckResponse(status=found))
                gevent.sleep(LOOK_S)

        return _counted(
            self._watchers, MOST_WATCHERS, RpcResponse(MessageFeed(changes(), endless=True))
        )

    def _reflect(self, asked: Proto, context: RequestContext) -> Message:
        """Answers one question for `grpcurl`: names of services, or the files that declare them."""
        kind, files = asked.WhichOneof("message_request"), dict[str, bytes]()
        name = getattr(asked, kind or "host")
        told: Proto = reflected.ServerReflectionResponse(
            valid_host=asked.host, original_request=asked
        )
        if kind == "list_services":
            for service in (SERVICE, HEALTH, *REFLECTIONS):
                told.list_services_response.service.add(name=service)
            return told
        try:
            _add_file(_file_of(kind, name), files)
            told.file_descriptor_response.file_descriptor_proto.extend(files.values())
        except KeyError:
            told.error_response.error_code = int(RpcCode.NOT_FOUND)
            told.error_response.error_message = "This is not known here."
        return told


def _method(name: str, handler: Callable[[Proto, RequestContext], Told]) -> RpcMethod:
    """Returns the method that reads the message which its service declares."""
    service, _, own = name.partition("/")
    declared = POOL.FindServiceByName(service.replace("v1.ServerR", "v1alpha.ServerR"))
    kind = GetMessageClass(declared.methods_by_name[own].input_type)

    def handle(context: RequestContext) -> RpcResponse:
        told = handler(read(context, kind), context)
        return told if isinstance(told, RpcResponse) else RpcResponse(framed_message(told))

    return RpcMethod(f"/{name}", handle, each=service in REFLECTIONS)


def _counted(open_streams: set[RpcResponse], most: int, response: RpcResponse) -> RpcResponse:
    """Keeps a response in `open_streams` until it is closed. ApiError 429 above `most`."""
    if len(open_streams) >= most:
        raise ApiError(429, "RateLimitError", f"There are {most} of these streams already.")
    open_streams.add(response)
    response.on_close(partial(open_streams.discard, response))
    return response


def _batches(waiting: Queue[tuple[int, EventBatch]], outcome: RpcOutcome) -> Iterator[bytes]:
    """Yields a `KvEventBatch` for each batch; a subscriber that is too slow has an error as its
    end.
    """
    while waiting.qsize() <= MOST_WAITING:
        number, batch = waiting.get()
        events = [{"event_id": at, **_event(event)} for at, event in enumerate(batch.events)]
        rank = batch.data_parallel_rank
        told = common.KvEventBatch(
            sequence_number=number, timestamp=batch.ts, dp_rank=rank, events=events
        )
        yield framed_message(told)
    outcome.fail(ApiError(429, "RateLimitError", "The subscriber is too slow."))


def _event(event: KVEvent) -> dict[str, object]:
    """Returns the fields of a `KvCacheEvent`; hashes are the low 64 bits, signed; None leaves a
    field out.
    """
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
    stored = {
        "blocks": blocks,
        "parent_block_hash": None if parent is None else _signed(parent),
        **place,
    }
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
        common.GetTokenizerChunk(data=data[at : at + CHUNK_BYTES])
        for at in range(0, len(data), CHUNK_BYTES)
    ]
    chunks[-1].sha256 = hashlib.sha256(data).hexdigest()
    return b"".join(map(framed_message, chunks))


def _file_of(kind: str, name: str) -> Proto:
    """Returns a file by its name, or the one that declares a symbol. KeyError without one."""
    if kind == "file_by_filename":
        return POOL.FindFileByName(name)
    if kind != "file_containing_symbol":
        raise KeyError(kind)  # extensions are not used here
    try:
        return POOL.FindFileContainingSymbol(name)
    except KeyError:  # perhaps a method of a service
        return POOL.FindServiceByName(name.rpartition(".")[0]).file


def _add_file(file: Proto, files: dict[str, bytes]) -> None:
    """Adds a file and all its imports by their names."""
    files[file.name] = file.serialized_pb
    for imported in file.dependencies:
        _add_file(imported, files)
