"""The message of a plain token, which is written by hand, is the one that protobuf writes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from smg_grpc_proto import vllm_engine_pb2 as messages

from app.engine.core.outputs import Started
from app.serving.api.grpc.writer import RpcWriter, plain_message
from app.serving.http.rpc import framed
from app.serving.protocol.completions import CompletionRequest

pytestmark = pytest.mark.grpc


@given(st.integers(0, 2**32 - 1), st.integers(1, 400_000), st.integers(0, 300), st.integers(0, 9000))
def test_a_plain_token_is_written_as_protobuf_writes_it(
    token: int, prompt: int, index: int, cached: int
) -> None:
    writer = RpcWriter(index + 1, CompletionRequest(prompt="a", stream=True), range(prompt), None)
    writer.take(Started(index, 0.0, cached_tokens=cached))
    said = messages.GenerateStreamChunk(
        token_ids=[token], prompt_tokens=prompt, completion_tokens=1, cached_tokens=cached, index=index
    )
    tail = writer.plain_tail(index)
    whole = messages.GenerateResponse(chunk=said).SerializeToString()
    assert tail is not None and plain_message(token, tail) == framed(whole)
