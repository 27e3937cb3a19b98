"""What a gateway asks about a server beside generating: models, load, health, caches, aborts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from gevent.event import Event

from app.api.grpc.messages import SERVICE, answer, common, engine, read
from app.engine.client import EngineClient
from app.engine.lifecycle import Operations
from app.http.context import RequestContext
from app.http.errors import ApiError
from app.http.rpc import RpcMethod, RpcResponse
from app.tokenization import Tokenizer
from config.settings import Settings

SERVER_TYPE = "vllm-grpc"
LOOK_AGAIN_S = 0.01
LONGEST_WAIT_S = 60.0
"""For a server that is to be idle before its cache is flushed."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the methods tell of. `usage` is the share of the KV cache in use, from 0 to 1."""

    settings: Callable[[], Settings]
    engine: EngineClient
    lifecycle: Operations
    tokenizer: Tokenizer
    rank: int
    usage: Callable[[], float]
    started_s: float
    """Moment of the monotonic clock."""

    def methods(self) -> list[RpcMethod]:
        """All but those that generate, embed or go on for long."""
        handlers = {
            "HealthCheck": self.health_check,
            "Abort": self.abort,
            "GetModelInfo": self.model_info,
            "GetServerInfo": self.server_info,
            "GetLoads": self.loads,
            "FlushCache": self.flush_cache,
            "StartProfile": self.start_profile,
            "StopProfile": self.stop_profile,
        }
        return [RpcMethod(f"/{SERVICE}/{name}", handle) for name, handle in handlers.items()]

    def health_check(self, context: RequestContext) -> RpcResponse:
        """Whether the engine is there."""
        read(context, engine.HealthCheckRequest)
        healthy = self.engine.healthy
        message = "Health" if healthy else "Engine is not alive"
        return answer(engine.HealthCheckResponse(healthy=healthy, message=message))

    def abort(self, context: RequestContext) -> RpcResponse:
        """End requests by their ids: their callers are told `abort`. Unknown ids are none of ours."""
        ids = read(context, engine.AbortRequest).request_ids
        if ids:
            self.engine.interrupt(frozenset(ids))
        return answer(engine.AbortResponse())

    def model_info(self, context: RequestContext) -> RpcResponse:
        """The model, and what its tokenizer knows."""
        read(context, engine.GetModelInfoRequest)
        settings = self.settings()
        model, tokenizer = settings.model, self.tokenizer
        return answer(
            engine.GetModelInfoResponse(
                model_path=model.model,
                is_generation=model.task == "generate",
                max_context_length=model.max_model_len,
                vocab_size=tokenizer.vocab_size or 0,
                served_model_name=model.served_names[0],
                tokenizer_path=settings.tokenizer.tokenizer or model.model,
                eos_token_ids=sorted(tokenizer.eos_token_ids),
                max_req_input_len=model.max_model_len,
            )
        )

    def server_info(self, context: RequestContext) -> RpcResponse:
        """The server, as a router needs to know it. There is no connector, and no processor of media."""
        read(context, engine.GetServerInfoRequest)
        settings = self.settings()
        return answer(
            engine.GetServerInfoResponse(
                active_requests=self.engine.running + self.engine.waiting,
                is_paused=self.lifecycle.paused,
                uptime_seconds=time.monotonic() - self.started_s,
                server_type=SERVER_TYPE,
                data_parallel_size=settings.server.data_parallel_size,
                kv_cache_dtype="auto",
                block_size=settings.kvcache.block_size,
                pairing_protocol=os.environ.get("SMG_PAIRING_PROTOCOL", ""),
                max_num_seqs=settings.scheduling.max_num_seqs,
                engine_reasoning_parser=settings.reply.reasoning_parser,
                constrained_decoding_start="first_token",
            )
        )

    def loads(self, context: RequestContext) -> RpcResponse:
        """What runs and waits on this rank. ApiError 400 for another one; `include` knows `core` alone."""
        asked, settings = read(context, engine.GetLoadsRequest), self.settings()
        if asked.HasField("dp_rank") and asked.dp_rank != self.rank:
            text = f"dp_rank is {asked.dp_rank}, but this port serves rank {self.rank} only."
            raise ApiError(400, "BadRequestError", text, "dp_rank")
        running, waiting = self.engine.running, self.engine.waiting
        capacity = settings.kvcache.kv_cache_size * settings.kvcache.block_size
        usage = self.usage()
        load = engine.SchedulerLoad(
            dp_rank=self.rank,
            num_running_reqs=running,
            num_waiting_reqs=waiting,
            num_total_reqs=running + waiting,
            num_used_tokens=round(usage * capacity),
            max_total_num_tokens=min(capacity, 2**31 - 1),
            token_usage=usage,
            utilization=min(1.0, running / settings.scheduling.max_num_seqs),
            max_running_requests=settings.scheduling.max_num_seqs,
        )
        return answer(
            engine.GetLoadsResponse(
                timestamp=datetime.now(UTC).isoformat(),
                version=settings.model.vllm_version,
                dp_rank_count=1,
                loads=[load],
            )
        )

    def flush_cache(self, context: RequestContext) -> RpcResponse:
        """Forget what is cached, once nothing runs, or at once. May wait for as long as it is told."""
        wait_s = read(context, common.FlushCacheRequest).timeout_s
        until_s = time.monotonic() + min(max(0.0, wait_s), LONGEST_WAIT_S)
        never = Event()
        while self.engine.running and time.monotonic() < until_s:
            never.wait(LOOK_AGAIN_S)
        if self.engine.running:
            message = f"{self.engine.running} requests are running: the cache is kept."
            return answer(common.FlushCacheResponse(success=False, message=message))
        done = self.lifecycle.reset_prefix_cache()
        return answer(
            common.FlushCacheResponse(success=done, message="" if done else "Requests are running.")
        )

    def start_profile(self, context: RequestContext) -> RpcResponse:
        """Begin to profile nothing."""
        read(context, common.StartProfileRequest)
        return self._profile()

    def stop_profile(self, context: RequestContext) -> RpcResponse:
        """End it."""
        read(context, common.StopProfileRequest)
        return self._profile()

    def _profile(self) -> RpcResponse:
        profiling = self.settings().server.profiling
        message = "" if profiling else "The server was started without profiling."
        return answer(common.ProfileResponse(success=profiling, message=message))
