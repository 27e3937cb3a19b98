"""What a gateway asks beside tokens, and what goes wrong, on purpose or not:

each place is freed.
"""

import hashlib
import io
import json
import os
import signal
import threading
import time
import zipfile
from collections.abc import Iterator

import grpc
import psutil
import pytest
import requests
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from smg_grpc_proto import vllm_engine_pb2 as messages
from smg_grpc_proto.generated import common_pb2

from app.core.text.huggingface import EMBEDDED
from tests.extensions.grpc.client import (
    LIMIT_S,
    Engine,
    connected,
    ends_of,
    failure,
    generate,
    tokens_of,
)
from tests.hostile.raw_client import metric, wait_for_value, wait_until
from tests.running_server import RunningServer, free_port, running_server

pytestmark = pytest.mark.grpc

Code = grpc.StatusCode


@pytest.fixture(scope="module")
def cached() -> Iterator[tuple[RunningServer, Engine]]:
    """A server with a KV cache and a tokenizer of its own, whose tokens take time."""
    flags = [
        "--kv-cache-size",
        "64",
        "--block-size",
        "16",
        "--enable-kvcache",
        "true",
        "--profiling",
        "true",
    ]
    flags += [
        "--inter-token-latency",
        "20ms",
        "--tokenizer",
        str(EMBEDDED),
        "--served-model-name",
        "alias",
    ]
    with running_server("--grpc", *flags) as server, connected(server.port) as engine:
        yield server, engine


def test_get_model_info_returns_the_name_context_and_vocabulary_size(
    cached: tuple[RunningServer, Engine],
) -> None:
    info = cached[1].stub.GetModelInfo(messages.GetModelInfoRequest(), timeout=LIMIT_S)
    assert (info.is_generation, info.max_context_length, info.max_req_input_len) == (
        True,
        32_768,
        32_768,
    )
    assert (info.served_model_name, info.tokenizer_path) == ("alias", str(EMBEDDED))
    assert (info.vocab_size, list(info.eos_token_ids)) == (6146, [0])


def test_get_loads_and_get_server_info_report_the_running_requests(
    cached: tuple[RunningServer, Engine],
) -> None:
    _, engine = cached
    call = engine.stub.Generate(
        generate(range(1, 65), max_tokens=500, ignore_eos=True), timeout=LIMIT_S
    )
    next(call)
    info = engine.stub.GetServerInfo(messages.GetServerInfoRequest(), timeout=LIMIT_S)
    assert (info.active_requests, info.server_type, info.block_size) == (1, "vllm-grpc", 16)
    assert (info.data_parallel_size, info.max_num_seqs, info.is_paused) == (1, 256, False)
    loads = engine.stub.GetLoads(
        messages.GetLoadsRequest(dp_rank=0, include=["core"]), timeout=LIMIT_S
    )
    [load] = loads.loads
    assert (load.num_running_reqs, load.num_total_reqs, load.max_total_num_tokens) == (1, 1, 1024)
    assert 64 <= load.num_used_tokens <= 1024
    assert load.token_usage > 0
    call.cancel()
    engine.wait_for(0)
    assert (
        failure(engine.stub.GetLoads, messages.GetLoadsRequest(dp_rank=1)) == Code.INVALID_ARGUMENT
    )


def test_abort_ends_a_stream_with_finish_reason_abort(cached: tuple[RunningServer, Engine]) -> None:
    _, engine = cached
    request = generate(max_tokens=500, ignore_eos=True)
    request.request_id = "long"
    call = engine.stub.Generate(request, timeout=LIMIT_S)
    next(call)
    engine.stub.Abort(messages.AbortRequest(request_ids=["nobody"]), timeout=LIMIT_S)
    assert engine.running() == 1
    engine.stub.Abort(messages.AbortRequest(request_ids=["nobody", "long"]), timeout=LIMIT_S)
    [end] = ends_of(list(call))
    assert (end.finish_reason, engine.running()) == ("abort", 0)


def test_subscriber_receives_stored_and_removed_blocks(
    cached: tuple[RunningServer, Engine],
) -> None:
    _, engine = cached
    engine.stub.FlushCache(common_pb2.FlushCacheRequest(), timeout=LIMIT_S)
    batches = engine.stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest(), timeout=LIMIT_S)
    heard: list[common_pb2.KvCacheEvent] = []
    reader = threading.Thread(target=lambda: _hear(batches, heard))
    reader.start()
    batches.initial_metadata()  # which come when somebody listens
    engine.generate(generate(range(100, 133), max_tokens=2))
    wait_until(lambda: any(event.HasField("stored") for event in heard))
    [stored] = [event.stored for event in heard if event.HasField("stored")]
    assert [list(block.token_ids) for block in stored.blocks] == [
        list(range(100, 116)),
        list(range(116, 132)),
    ]
    assert [block.block_size for block in stored.blocks] == [16, 16]
    assert not stored.HasField("parent_block_hash")
    assert (stored.medium, stored.tier) == ("GPU", common_pb2.KV_CACHE_TIER_DEVICE)
    assert engine.stub.FlushCache(common_pb2.FlushCacheRequest(), timeout=LIMIT_S).success
    wait_until(lambda: any(event.HasField("cleared") for event in heard))
    batches.cancel()
    reader.join()
    late = common_pb2.SubscribeKvEventsRequest(start_sequence_number=10**6)
    assert failure(engine.stub.SubscribeKvEvents, late) == Code.FAILED_PRECONDITION


def _hear(batches: Iterator[common_pb2.KvEventBatch], heard: list[common_pb2.KvCacheEvent]) -> None:
    try:
        for batch in batches:
            heard += batch.events
    except grpc.RpcError as error:
        assert error.code() == Code.CANCELLED


def test_get_tokenizer_returns_the_tokenizer_files(
    cached: tuple[RunningServer, Engine], engine: Engine
) -> None:
    chunks = list(cached[1].stub.GetTokenizer(common_pb2.GetTokenizerRequest(), timeout=LIMIT_S))
    data = b"".join(chunk.data for chunk in chunks)
    assert [chunk.sha256 for chunk in chunks] == [""] * (len(chunks) - 1) + [
        hashlib.sha256(data).hexdigest()
    ]
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.read("tokenizer.json") == (EMBEDDED / "tokenizer.json").read_bytes()
    assert (
        failure(engine.stub.GetTokenizer, common_pb2.GetTokenizerRequest())
        == Code.FAILED_PRECONDITION
    )


def test_engine_service_and_grpc_health_service_report_health(
    engine: Engine,
) -> None:
    assert engine.stub.HealthCheck(messages.HealthCheckRequest(), timeout=LIMIT_S).healthy
    health = health_pb2_grpc.HealthStub(engine.channel)
    for service in ("", "vllm.grpc.engine.VllmEngine"):
        request = health_pb2.HealthCheckRequest(service=service)
        assert (
            health.Check(request, timeout=LIMIT_S).status == health_pb2.HealthCheckResponse.SERVING
        )
        watch = health.Watch(request, timeout=LIMIT_S)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()
    assert failure(health.Check, health_pb2.HealthCheckRequest(service="other")) == Code.NOT_FOUND
    unknown = next(health.Watch(health_pb2.HealthCheckRequest(service="other"), timeout=LIMIT_S))
    assert unknown.status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


def test_health_watch_reports_when_the_server_becomes_ready() -> None:
    with (
        running_server("--grpc", "--startup-duration", "2s") as server,
        connected(server.port) as engine,
    ):
        watch = health_pb2_grpc.HealthStub(engine.channel).Watch(
            health_pb2.HealthCheckRequest(), timeout=LIMIT_S
        )
        seen = [next(watch).status, next(watch).status]
        watch.cancel()
    response = health_pb2.HealthCheckResponse
    assert seen == [response.NOT_SERVING, response.SERVING]


def test_grpc_reflection_describes_the_engine_service(engine: Engine) -> None:
    database = ProtoReflectionDescriptorDatabase(engine.channel)
    assert "vllm.grpc.engine.VllmEngine" in database.get_services()
    file = database.FindFileContainingSymbol("vllm.grpc.engine.VllmEngine.Generate")
    [service] = file.service
    assert "SubscribeKvEvents" in {method.name for method in service.method}
    assert database.FindFileByName("common.proto").package == "smg.grpc.common"
    with pytest.raises(KeyError):
        database.FindFileContainingSymbol("nobody.knows.This")


def test_grpc_embeddings_equal_those_over_http() -> None:
    with running_server("--grpc", "--task", "embed") as server, connected(server.port) as engine:
        request = messages.EmbedRequest(request_id="a", tokenized={"input_ids": [4, 5, 6]})
        embedded = engine.stub.Embed(request, timeout=LIMIT_S)
        body = {"model": "understudy-tiny", "input": [4, 5, 6]}
        answer = requests.post(f"{server.url}/v1/embeddings", json=body, timeout=LIMIT_S).json()
        assert list(embedded.embedding) == pytest.approx(answer["data"][0]["embedding"], rel=1e-5)
        assert (embedded.prompt_tokens, embedded.embedding_dim) == (3, len(embedded.embedding))
        assert engine.refusal(generate())[0] == Code.UNIMPLEMENTED
        assert failure(engine.stub.Embed, messages.EmbedRequest()) == Code.INVALID_ARGUMENT


def test_unknown_methods_return_unimplemented(engine: Engine) -> None:
    calls = {"/vllm.grpc.engine.VllmEngine/Nothing": b"", "/a.B/C": b"x" * 100_000}
    for path, message in calls.items():
        assert failure(engine.channel.unary_unary(path), message) == Code.UNIMPLEMENTED
    assert (
        failure(engine.stub.SubscribeKvEvents, common_pb2.SubscribeKvEventsRequest())
        == Code.UNIMPLEMENTED
    )
    assert failure(engine.stub.Embed, messages.EmbedRequest()) == Code.UNIMPLEMENTED


def test_metrics_count_grpc_calls_like_http_requests(served: RunningServer, engine: Engine) -> None:
    def counted() -> list[float]:
        calls = metric(
            served.port, "http_requests_total", handler="/vllm.grpc.engine.VllmEngine/Generate"
        )
        ways = metric(served.port, "understudy_requests_total", way="grpc")
        return [ways, metric(served.port, "vllm:generation_tokens_total"), calls]

    engine.generate(generate(max_tokens=3, ignore_eos=True))
    counts_before = counted()
    engine.generate(generate(max_tokens=3, ignore_eos=True))
    assert [now - earlier for now, earlier in zip(counted(), counts_before, strict=True)] == [
        1,
        3,
        1,
    ]


def test_every_rank_has_a_separate_grpc_port() -> None:
    port = free_port(2)
    flags = ["--grpc-port", str(port), "--data-parallel-size", "2"]
    with running_server(*flags) as server:
        for rank, rank_port in ((0, port), (1, port + 1), (0, server.port), (1, server.port + 1)):
            with connected(rank_port) as engine:
                request = generate()
                request.data_parallel_rank = rank
                assert ends_of(engine.generate(request))
                assert (
                    requests.get(
                        f"http://127.0.0.1:{rank_port}/health", timeout=LIMIT_S
                    ).status_code
                    == 200
                )
                request.data_parallel_rank = 1 - rank
                assert engine.refusal(request)[0] == Code.INVALID_ARGUMENT


@pytest.fixture(scope="module")
def slow() -> Iterator[tuple[RunningServer, Engine]]:
    """A server of two places, with room for one that waits; tokens come every 50 ms."""
    flags = [
        "--max-num-seqs",
        "2",
        "--max-waiting-queue-length",
        "1",
        "--inter-token-latency",
        "50ms",
    ]
    with running_server("--grpc", *flags) as server, connected(server.port) as engine:
        yield server, engine


def long() -> messages.GenerateRequest:
    """A request for a minute's tokens."""
    return generate(max_tokens=1200, ignore_eos=True)


def test_cancelled_timed_out_or_disconnected_calls_free_their_slots(
    slow: tuple[RunningServer, Engine],
) -> None:
    """They cancel at any stage, run out of time, or disappear with their connection."""
    server, engine = slow
    for tokens in (0, 1, 5) * 5:
        call = engine.stub.Generate(long(), timeout=LIMIT_S)
        for _ in range(tokens):
            next(call)
        call.cancel()
    engine.wait_for(0)
    with pytest.raises(grpc.RpcError) as late:
        list(engine.stub.Generate(long(), timeout=0.3))
    assert late.value.code() == Code.DEADLINE_EXCEEDED
    engine.wait_for(0)
    with connected(server.port) as other:
        calls = [other.stub.Generate(long(), timeout=LIMIT_S) for _ in range(2)]
        for call in calls:
            next(call)
        waiting = other.stub.Generate(long(), timeout=LIMIT_S)
        engine.wait_for(3)
        waiting.cancel()
        engine.wait_for(2)
    engine.wait_for(0)


def test_cancelled_calls_draw_no_more_values_of_a_long_schema(
    slow: tuple[RunningServer, Engine],
) -> None:
    """Each of the calls, of which most have begun, would take a third of a second."""
    server, engine = slow
    names = [f"p{number}" for number in range(200)]
    schema = {
        "type": "object",
        "properties": {n: {"type": "string", "pattern": "a+"} for n in names},
    }
    request = generate(n=16, max_tokens=500, json_schema=json.dumps(schema))

    def held_bytes() -> int:
        answer = requests.get(f"{server.url}/admin/memory", timeout=LIMIT_S).json()
        return int(answer["caches"]["requests in flight"]["size_bytes"])

    for _ in range(25):
        calls = [engine.stub.Generate(request, timeout=LIMIT_S) for _ in range(16)]
        time.sleep(0.02)
        for call in calls:
            call.cancel()
    wait_for_value(held_bytes, equals=0, limit_s=20.0)
    engine.wait_for(0)


def test_api_keys_and_rate_limits_apply_to_grpc_calls() -> None:
    flags = ["--api-key", "secret", "--requests-per-minute", "2"]
    with running_server("--grpc", *flags) as server, connected(server.port) as engine:
        assert engine.refusal(generate()) == (Code.UNAUTHENTICATED, "Unauthorized")
        other = [("authorization", "Bearer other")]
        assert engine.refusal(generate(), metadata=other)[0] == Code.UNAUTHENTICATED
        key = [("authorization", "Bearer secret")]
        assert ends_of(engine.generate(generate(), metadata=key))
        url = f"{server.url}/v1/completions"
        headers = {"Authorization": "Bearer secret"}
        answer = requests.post(url, json={"prompt": "a"}, headers=headers, timeout=LIMIT_S)
        assert answer.status_code == 200
        assert engine.refusal(generate(), metadata=key)[0] == Code.RESOURCE_EXHAUSTED


def test_shutdown_lets_streams_finish_and_rejects_new_calls() -> None:
    flags = ["--inter-token-latency", "50ms", "--enable-kvcache", "true"]
    with running_server("--grpc", *flags) as server, connected(server.port) as engine:
        watch = health_pb2_grpc.HealthStub(engine.channel).Watch(health_pb2.HealthCheckRequest())
        next(watch)
        events = engine.stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest())
        events.initial_metadata()
        call = engine.stub.Generate(generate(max_tokens=40, ignore_eos=True), timeout=LIMIT_S)
        messages = [next(call)]
        server.process.send_signal(signal.SIGTERM)
        wait_for_value(refused_by, server.port, equals=Code.UNAVAILABLE)
        messages += call
        assert len(tokens_of(messages)) == 40
        assert server.process.wait(LIMIT_S) == 0
        for endless in (watch, events):
            with pytest.raises(grpc.RpcError) as ended:
                list(endless)
            assert ended.value.code() == Code.UNAVAILABLE


def refused_by(port: int) -> grpc.StatusCode | None:
    with connected(port) as engine:
        try:
            engine.generate(generate())
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return None


def test_killed_worker_is_replaced() -> None:
    with running_server("--grpc", "--inter-token-latency", "50ms") as server:
        with connected(server.port) as engine:
            call = engine.stub.Generate(long(), timeout=LIMIT_S)
            next(call)
            [worker] = psutil.Process(server.process.pid).children()
            os.kill(worker.pid, signal.SIGKILL)
            with pytest.raises(grpc.RpcError) as broken:
                list(call)
            assert broken.value.code() == Code.UNAVAILABLE
        with connected(server.port) as engine:
            assert ends_of(engine.generate(generate(), wait_for_ready=True))
            assert engine.running() == 0
