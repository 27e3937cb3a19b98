"""All methods of a server over gRPC: Generate, Embed, facts for gateways, streams and health."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import gevent
from gevent.lock import BoundedSemaphore
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from app.core.api.pipeline import RequestPipeline
from app.core.base import Bounded
from app.core.base.clock.pause import call_off_hub
from app.core.engine.kvcache.publisher import EventSender
from app.core.engine.lifecycle import Operations
from app.core.protocol.validation import check_prompt_length
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import ApiError, bad_request, not_found, not_implemented
from app.core.server.http.rpc import RpcHandlers, RpcResponse, RpcService
from app.core.versions.chain import simulated_version
from app.extensions.grpc.generate import Generator
from app.extensions.grpc.kv_events import Subscription
from app.extensions.grpc.message_feed import MessageFeed
from app.extensions.grpc.messages import Proto, common, engine, framed_message
from app.extensions.grpc.methods import Answer, service_of
from app.extensions.grpc.reflection import HEALTH, SERVICE
from app.extensions.grpc.tokenizer_archive import archive_messages
from app.extensions.pooling.paths import EMBEDDINGS, served_paths
from app.extensions.pooling.protocol import EmbeddingRequest
from app.extensions.pooling.runner import PoolingRunner

health: Proto = health_pb2
MAX_WATCHERS = 256
MAX_SUBSCRIBERS = 32
"""Most subscribers at a time: each costs a message per batch."""
NO_EVENTS = (
    "There are no KV events: the server has no prefix cache of its own, or --enable-kvcache is off."
)
IDLE_CHECK_INTERVAL_S = 0.01
"""Seconds between two checks of whether the server is idle."""
HEALTH_CHECK_INTERVAL_S = 0.2
"""Seconds between two checks of a watched health."""
MAX_FLUSH_WAIT_S = 60.0
"""Longest wait, in seconds, until a server is idle and its cache can be flushed."""


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
        self._pipeline = pipeline
        self._engine = pipeline.responder.engine
        self._lifecycle = lifecycle
        self._is_ready = is_ready
        self._usage = usage
        self._publisher = publisher
        self._started_s = time.monotonic()
        self._generator = Generator(pipeline)
        self._runner = PoolingRunner(pipeline, pipeline.live.current.model)
        self.caches: Mapping[str, Bounded] = {
            "embeddings over gRPC": self._runner.model.known_features
        }
        self._archive: bytes | None = None
        self._archive_lock = BoundedSemaphore(1)
        self._watchers: set[RpcResponse] = set()
        self._subscribers: set[RpcResponse] = set()

    def methods(self, further_handlers: Iterable[RpcHandlers | None] = ()) -> RpcService:
        """Returns all methods, including further ones, and the limit of their messages."""
        handlers: dict[str, Callable[[Proto, RequestContext], Answer]] = {
            f"{SERVICE}/Generate": self._generator.generate,
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
        }
        for load_handlers in further_handlers:
            if load_handlers is not None:
                handlers |= load_handlers()
        return service_of(handlers, self._pipeline.live.current.server)

    def _embed(self, request: Proto, context: RequestContext) -> Message:
        """Returns the vector that POST /v1/embeddings returns for the same tokens."""
        token_ids = request.tokenized.input_ids
        if EMBEDDINGS not in served_paths(self._pipeline.live.current.model):
            raise not_implemented("Embeddings require --task embed.")
        if not token_ids:
            raise bad_request("tokenized input is required", "tokenized")
        check_prompt_length(len(token_ids), self._pipeline.limits.max_model_len)
        embedding_request = EmbeddingRequest(input=list(token_ids), request_id=request.request_id)
        job = self._runner.run(context, embedding_request, "", "embed")
        [[vector]] = self._runner.rows(embedding_request, job, "embed")
        return engine.EmbedResponse(
            prompt_tokens=job.prompt_tokens, embedding_dim=len(vector), embedding=vector
        )

    def _health_check(self, request: Message, context: RequestContext) -> Message:
        healthy = self._engine.healthy
        message = "Health" if healthy else "Engine is not alive"
        return engine.HealthCheckResponse(healthy=healthy, message=message)

    def _abort(self, request: Proto, context: RequestContext) -> Message:
        """Ends requests by their ids, with the reason `abort`. Unknown ids are ignored."""
        if request.request_ids:
            self._engine.interrupt(frozenset(request.request_ids))
        return engine.AbortResponse()

    def _model_info(self, request: Message, context: RequestContext) -> Message:
        settings = self._pipeline.live.current
        model = settings.model
        tokenizer = self._pipeline.tokenizer
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

    def _server_info(self, request: Message, context: RequestContext) -> Message:
        """Returns the server as a router needs to know it.

        The server has no connector, and no processor of media.
        """
        settings = self._pipeline.live.current
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

    def _loads(self, request: Proto, context: RequestContext) -> Message:
        """Returns running and waiting requests; `include` has only `core`.

        Raises:
            ApiError: 400 for another rank.
        """
        settings = self._pipeline.live.current
        rank = self._pipeline.rank
        if request.HasField("dp_rank") and request.dp_rank != rank:
            raise bad_request(
                f"dp_rank is {request.dp_rank}, but this port serves only rank {rank}.", "dp_rank"
            )
        running = self._engine.running
        waiting = self._engine.waiting
        usage = self._usage()
        capacity = settings.kvcache.kv_cache_size * settings.kvcache.block_size
        max_num_seqs = settings.scheduling.max_num_seqs
        load = engine.SchedulerLoad(
            dp_rank=rank,
            num_running_reqs=running,
            num_waiting_reqs=waiting,
            num_total_reqs=running + waiting,
            num_used_tokens=round(usage * capacity),
            max_total_num_tokens=min(capacity, 2**31 - 1),
            token_usage=usage,
            utilization=min(1.0, running / max_num_seqs),
            max_running_requests=max_num_seqs,
        )
        return engine.GetLoadsResponse(
            timestamp=datetime.now(UTC).isoformat(),
            version=simulated_version(self._pipeline.live.current.api).release,
            dp_rank_count=1,
            loads=[load],
        )

    def _flush_cache(self, request: Proto, context: RequestContext) -> Message:
        """Empties the cache once nothing runs.

        Waits up to `timeout_s`, at most `MAX_FLUSH_WAIT_S`.
        """
        deadline_s = time.monotonic() + min(max(0.0, request.timeout_s), MAX_FLUSH_WAIT_S)
        while self._engine.running and time.monotonic() < deadline_s:
            gevent.sleep(IDLE_CHECK_INTERVAL_S)
        success = not self._engine.running and self._lifecycle.reset_prefix_cache()
        message = ""
        if not success:
            message = "Requests are running: the cache is kept."
        return common.FlushCacheResponse(success=success, message=message)

    def _profile(self, request: Message, context: RequestContext) -> Message:
        profiling = self._pipeline.live.current.server.profiling
        message = ""
        if not profiling:
            message = "The server was started without profiling."
        return common.ProfileResponse(success=profiling, message=message)

    def _tokenizer(self, request: Message, context: RequestContext) -> RpcResponse:
        """Returns the tokenizer's files in chunks; they are archived once for all clients."""
        settings = self._pipeline.live.current
        with self._archive_lock:
            if self._archive is None:
                folder = Path(settings.tokenizer.tokenizer or settings.model.model)
                self._archive = call_off_hub(archive_messages, folder)
        return RpcResponse(self._archive)

    def _subscribe(self, request: Proto, context: RequestContext) -> RpcResponse:
        """Returns every batch from now on, numbered as on the ZMQ socket."""
        publisher = self._publisher
        if publisher is None:
            raise not_implemented(NO_EVENTS)
        start = request.start_sequence_number
        if start not in (0, publisher.next_sequence):
            raise ApiError(
                412,
                "PreconditionFailed",
                f"Batch {start} is not available; the next batch is {publisher.next_sequence}.",
                "start_sequence_number",
            )
        subscription = Subscription()
        feed = MessageFeed(subscription.messages(), endless=True)
        response = RpcResponse(feed, None, subscription.outcome)
        track_stream(self._subscribers, response, MAX_SUBSCRIBERS)
        publisher.listen(subscription.publish)
        response.on_close(partial(publisher.forget, subscription.publish))
        return response

    def _status(self, service: str) -> int:
        """Returns the health of the server as a whole (""), or of the engine's service."""
        response = health.HealthCheckResponse
        if service not in ("", SERVICE):
            return int(response.SERVICE_UNKNOWN)
        return int(response.SERVING if self._is_ready() else response.NOT_SERVING)

    def _check(self, request: Proto, context: RequestContext) -> Message:
        status = self._status(request.service)
        if status == health.HealthCheckResponse.SERVICE_UNKNOWN:
            raise not_found("This service is not available.")
        return health.HealthCheckResponse(status=status)

    def _watch(self, request: Proto, context: RequestContext) -> RpcResponse:
        """Returns the health now, and at every change."""
        feed = MessageFeed(self._health_changes(request.service), endless=True)
        response = RpcResponse(feed)
        track_stream(self._watchers, response, MAX_WATCHERS)
        return response

    def _health_changes(self, service: str) -> Iterator[bytes]:
        last_status = None
        while True:
            status = self._status(service)
            if status != last_status:
                last_status = status
                yield framed_message(health.HealthCheckResponse(status=status))
            gevent.sleep(HEALTH_CHECK_INTERVAL_S)


def track_stream(open_streams: set[RpcResponse], response: RpcResponse, max_streams: int) -> None:
    """Adds a response to `open_streams` until it is closed.

    Raises:
        ApiError: 429 when there are `max_streams` already.
    """
    if len(open_streams) >= max_streams:
        raise ApiError(
            429, "RateLimitError", f"The limit of {max_streams} streams has been reached."
        )
    open_streams.add(response)
    response.on_close(partial(open_streams.discard, response))
