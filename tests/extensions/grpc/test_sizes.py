"""Which messages are taken apart at all."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from smg_grpc_proto import vllm_engine_pb2 as messages

from app.core.server.http.errors import ApiError
from app.extensions.grpc.messages import MAX_FIELDS, MAX_OTHER_BYTES, SCANNED_BYTES, check_size
from tests.extensions.grpc.client import generate, varint

pytestmark = pytest.mark.grpc


def check(data: bytes, kind: Any = messages.GenerateRequest) -> None:
    check_size(data, kind.DESCRIPTOR)


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def large(**fields: Any) -> bytes:
    request = generate([1] * 200_000)
    request.MergeFrom(messages.GenerateRequest(**fields))
    data: bytes = request.SerializeToString()
    return data


def test_messages_with_large_prompts_schemas_and_tensors_are_accepted() -> None:
    tensor = messages.TensorData(inline=bytes(9 << 20), shape=[3, 4])
    media = messages.MultimodalInputs(
        pixel_values=tensor, model_specific_tensors={"a": tensor, "b": tensor}
    )
    check(large(mm_inputs=media, extra_mm_inputs=[media]))
    request = generate()
    request.text = "é" * (1 << 20)
    request.sampling_params.json_schema = "x" * (1 << 20)
    check(request.SerializeToString())
    check(field(2, field(2, b"\x01" * (MAX_OTHER_BYTES - 10))), messages.EmbedRequest)


KINDS = (
    "texts in a list",
    "biases",
    "media",
    "tokens one by one",
    "a long text",
    "unknown fields",
    "tokens",
    "a field that is too long",
    "a number without end",
    "a group",
)


@pytest.fixture(scope="module")
def many_parts() -> dict[str, bytes]:
    """A message with too many parts of each of `KINDS`: megabytes, so not made at import."""
    return {
        "texts in a list": field(4, b"\x52\x00" * (MAX_FIELDS + 1)),
        "biases": field(4, field(26, b"\x08\x01") * (MAX_FIELDS + 1)),
        "media": field(11, b"") * (MAX_FIELDS + 1),
        "tokens one by one": field(2, b"\x10\x01" * (MAX_FIELDS + 1)),
        "a long text": field(3, bytes(9 << 20)),
        "unknown fields": b"\xa0\x3f\x01" * (MAX_FIELDS + 1),
        "tokens": field(2, field(2, b"\x01" * MAX_OTHER_BYTES)),
        "a field that is too long": b"\x1a\xff\xff\xff\x7f" + bytes(SCANNED_BYTES),
        "a number without end": b"\xff" * (SCANNED_BYTES + 1),
        "a group": b"\x0b" * (SCANNED_BYTES + 1),
    }


@pytest.mark.parametrize("name", KINDS)
def test_message_with_too_many_parts_is_rejected(many_parts: dict[str, bytes], name: str) -> None:
    with pytest.raises(ApiError) as refusal:
        check(many_parts[name])
    assert refusal.value.status == 400


@given(st.binary(max_size=200))
def test_arbitrary_message_bytes_cause_only_errors_with_status_400(data: bytes) -> None:
    for begin in (b"", field(3, bytes(SCANNED_BYTES))):
        try:
            check(begin + data)
        except ApiError as error:
            assert error.status == 400
