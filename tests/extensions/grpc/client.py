"""A client of the engine's service, with the stubs of the package that vLLM uses."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
from smg_grpc_proto import vllm_engine_pb2 as messages
from smg_grpc_proto import vllm_engine_pb2_grpc as stubs

from tests.hostile.raw_client import wait_for_value

LIMIT_S = 20.0


class Engine:
    """The service behind `channel`."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.stub = stubs.VllmEngineStub(channel)

    def generate(self, request: Any, **options: Any) -> list[Any]:
        return list(self.stub.Generate(request, timeout=LIMIT_S, **options))

    def refusal(self, request: Any, **options: Any) -> tuple[grpc.StatusCode, str]:
        try:
            messages = self.generate(request, **options)
        except grpc.RpcError as error:
            return error.code(), error.details()
        raise AssertionError(f"it was answered: {messages}")

    def running(self) -> int:
        """Sequences that run or wait."""
        load = self.stub.GetLoads(messages.GetLoadsRequest(), timeout=LIMIT_S).loads[0]
        return int(load.num_total_reqs)

    def wait_for(self, running: int) -> None:
        wait_for_value(self.running, equals=running)


def failure(method: Callable[..., Any], request: Any) -> grpc.StatusCode:
    """How a call fails, which a stream does when it is read."""
    try:
        answer = method(request, timeout=LIMIT_S)
        if isinstance(answer, Iterator):
            answer = list(answer)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    raise AssertionError(f"it was answered: {answer}")


@contextmanager
def connected(port: int, *options: tuple[str, Any]) -> Iterator[Engine]:
    """A client of the server on `port`, with a connection of its own."""
    own_pool = ("grpc.use_local_subchannel_pool", 1)
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=[own_pool, *options]) as channel:
        yield Engine(channel)


def generate(ids: Sequence[int] = (1, 2, 3), stream: bool = True, **sampling: Any) -> Any:
    """A request for tokens, five of them unless `sampling` says something else."""
    params = messages.SamplingParams(**{"max_tokens": 5, **sampling})
    tokenized = messages.TokenizedInput(input_ids=ids)
    return messages.GenerateRequest(tokenized=tokenized, stream=stream, sampling_params=params)


def varint(number: int) -> bytes:
    head = bytes([number & 0x7F | 0x80]) if number >= 0x80 else b""
    return head + varint(number >> 7) if head else bytes([number])


def tokens_of(messages: Sequence[Any], index: int = 0) -> list[int]:
    chunks = [message.chunk for message in messages if message.HasField("chunk")]
    return [token for chunk in chunks if chunk.index == index for token in chunk.token_ids]


def ends_of(messages: Sequence[Any]) -> list[Any]:
    """How each choice ended, in the order in which it was told."""
    return [message.complete for message in messages if message.HasField("complete")]
