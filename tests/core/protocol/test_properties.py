"""Whatever arrives: a request or an ApiError, and a valid request arrives as it was sent."""

import importlib
import json
import pkgutil
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import app.core.protocol
from app.core.api.tokenize import TOKENIZE_REQUESTS
from app.core.protocol.chat import ChatCompletionRequest
from app.core.protocol.completions import CompletionRequest
from app.core.protocol.decoding import Request, decode
from app.core.protocol.tokenize import DetokenizeRequest
from app.core.protocol.validation import ModelLimits, ValidatedRequest
from app.core.server.http.errors import ApiError

JSON = "application/json"
KINDS: tuple[type[Request], ...] = (ChatCompletionRequest, CompletionRequest, DetokenizeRequest)


def kinds_below(kind: type[Request]) -> Iterator[type[Request]]:
    for subclass in kind.__subclasses__():
        if subclass.__module__.startswith("app.core.protocol."):
            yield subclass
        yield from kinds_below(subclass)


for module in pkgutil.iter_modules(app.core.protocol.__path__, "app.core.protocol."):
    importlib.import_module(module.name)
EVERY_KIND = [kind for kind in dict.fromkeys(kinds_below(Request)) if kind.__struct_fields__]
LIMITS = ModelLimits(max_model_len=2048, vocab_size=4096)

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
nested_names = ["role", "content", "type", "function", "name", "json_schema", "json", "tool_calls"]
shaped = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(nested_names), inner, max_size=4)
        | st.sampled_from(["user", "assistant", "function", "json_schema", "auto", "none"])
    ),
)


def decode_and_check(kind: type[Request], body: bytes, content_type: str | None = JSON) -> None:
    """Decoding and all later rules end normally or with an ApiError that can be sent."""
    try:
        request = decode(body, content_type, kind)
        if isinstance(request, ChatCompletionRequest | CompletionRequest):
            validated = ValidatedRequest(request, "model", LIMITS)
            validated.check_sampling([16])
            validated.check_engine([[1] * 16])
    except ApiError as error:
        assert error.status == 400
        json.loads(error.body())


@pytest.mark.parametrize("kind", EVERY_KIND, ids=lambda kind: kind.__name__)
@given(st.data())
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
def test_decoder_raises_only_api_errors_for_any_field_values(
    kind: type[Request], data: st.DataObject
) -> None:
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    body = data.draw(st.dictionaries(st.sampled_from(names), shaped, max_size=4))
    decode_and_check(kind, json.dumps(body).encode())


@given(
    st.binary(max_size=200),
    st.none() | st.sampled_from([JSON, "text/plain"]) | st.text(max_size=20),
)
@settings(max_examples=25)
def test_decoder_raises_only_api_errors_for_any_bytes(
    body: bytes, content_type: str | None
) -> None:
    for kind in KINDS:
        decode_and_check(kind, body, content_type)
    try:
        decode(body, content_type, *TOKENIZE_REQUESTS)
    except ApiError as error:
        json.loads(error.body())


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
token_ids = st.lists(st.integers(0, 4095), max_size=8)
sampling = {
    "model": texts,
    "temperature": st.floats(0, 2) | st.none(),
    "top_p": st.floats(0, 1, exclude_min=True),
    "max_tokens": st.integers(1, 2048),
    "n": st.integers(1, 8),
    "seed": st.integers(-(2**63), 2**63 - 1),
    "stop": st.lists(texts, max_size=4) | texts,
    "stop_token_ids": token_ids,
    "stream": st.booleans(),
    "ignore_eos": st.booleans(),
    "logit_bias": st.dictionaries(st.integers(0, 4095).map(str), st.floats(-100, 100), max_size=3),
    "kv_transfer_params": st.dictionaries(
        texts, texts | st.integers(-100, 100) | st.none(), max_size=3
    ),
    "return_token_ids": st.booleans() | st.none(),
    "truncate_prompt_tokens": st.integers(-1, 100),
}
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system"]), "content": texts}
    ),
    max_size=4,
)
prompts = (
    texts.filter(bool)
    | st.lists(texts, min_size=1, max_size=4)
    | token_ids.filter(bool)
    | st.lists(token_ids, min_size=1)
)


@given(st.fixed_dictionaries({"messages": messages}, optional=sampling))
@settings(max_examples=25)
def test_valid_chat_is_decoded_unchanged(body: dict[str, Any]) -> None:
    request = decode(json.dumps(body).encode(), JSON, ChatCompletionRequest)
    assert {name: getattr(request, name) for name in body} == body


@given(st.fixed_dictionaries({"prompt": prompts}, optional=sampling))
@settings(max_examples=25)
def test_valid_completion_is_decoded_unchanged(body: dict[str, Any]) -> None:
    request = decode(json.dumps(body).encode(), JSON, CompletionRequest)
    assert {name: getattr(request, name) for name in body} == body
