"""All methods of a server over gRPC; the methods without streams: facts for gateways, and Embed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import gevent
from google.protobuf.message import Message

from app.engine.core.lifecycle import Operations
from app.engine.core.sequence import EngineClient
from app.engine.kvcache.publisher import EventSender
from app.serving.api.grpc.generate import generate_method
from app.serving.api.grpc.messages import (
    MOST_MESSAGE_BYTES,
    SERVICE,
    Proto,
    answer,
    common,
    engine,
    read,
    unary,
)
from app.serving.api.grpc.streams import (
    HEALTH,
    REFLECTIONS,
    events_method,
    health_methods,
    reflection_methods,
    tokenizer_method,
    unimplemented,
)
from app.serving.api.pipeline import RequestPipeline
from app.serving.api.pooling import EMBEDDINGS, PoolingRunner, served_routes
from app.serving.http.context import RequestContext
from app.serving.http.errors import bad_request
from app.serving.http.rpc import RpcMethod, RpcResponse, RpcService
from app.serving.protocol.pooling import EmbeddingRequest
from app.serving.protocol.validation import check_prompt_length
from app.text.base import Tokenizer
from config.settings import ModelSettings, Settings

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
        now, version = datetime.now(UTC).isoformat(), settings.model.vllm_version
        return engine.GetLoadsResponse(timestamp=now, version=version, dp_rank_count=1, loads=[load])

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
