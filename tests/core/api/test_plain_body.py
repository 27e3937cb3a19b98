"""Bodies from a template are those of the writer that has made the template."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.api.chat.writer import ChatResponseOptions, ChatWriter
from app.core.api.completions import CompletionResponseOptions, CompletionWriter, EchoedPrompt
from app.core.api.identity import ResponseMeta
from app.core.api.plain import PlainChats, PlainCompletions, PlainGeneration
from app.core.api.plain_body import PlainBody, plain_body
from app.core.api.writer import ResponseWriter
from app.core.engine.outputs import Finish, Started, Tokens
from app.core.engine.request import Reply
from app.core.versions.shape import Shape

TEXTS = st.lists(st.text(max_size=6), max_size=12)
FINISHES = st.builds(
    Finish,
    st.sampled_from(["stop", "length", "content_filter"]),
    st.none() | st.text(max_size=4) | st.integers(0, 2**31),
)
FIRST = ResponseMeta("first", 1, "a model", "fp")
OPTIONS: tuple[Mapping[str, object], ...] = (
    {},
    {"shape": Shape(("ChatCompletionResponseChoice.weight_versions",))},
    {"continuous_usage": True, "token_id_names": True},
)
FAMILIES: dict[str, type[PlainGeneration]] = {"chat": PlainChats, "completion": PlainCompletions}


def writer_of(
    family: str, meta: ResponseMeta, prompt_ids: Sequence[int], options: Mapping[str, Any]
) -> ResponseWriter:
    """A writer of a whole answer of the family."""
    if family == "chat":
        chat_options = ChatResponseOptions(
            n=1, prompt_ids=prompt_ids, role="robot", parses=True, **options
        )
        return ChatWriter(meta, chat_options)
    prompt = EchoedPrompt(prompt_ids)
    return CompletionWriter(meta, CompletionResponseOptions(n=1, prompts=(prompt,), **options))


def template_of(family: str, options: Mapping[str, Any]) -> PlainBody:
    """The template that a first request of the family leaves."""
    return plain_body(writer_of(family, FIRST, [1, 2], options), FAMILIES[family].clear_text)


@settings(deadline=None)
@given(
    texts=TEXTS,
    finish=FINISHES,
    response_id=st.text(max_size=8),
    created=st.integers(0, 2**40),
    prompt_tokens=st.integers(0, 300),
)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_body_from_a_template_equals_that_of_the_writer(
    family: str,
    options: Mapping[str, Any],
    texts: list[str],
    finish: Finish,
    response_id: str,
    created: int,
    prompt_tokens: int,
) -> None:
    meta = ResponseMeta(response_id, created, "a model", "fp")
    ids = list(range(len(texts)))
    writer = writer_of(family, meta, range(prompt_tokens), options)
    writer.collect(Started(0, at_s=0.0))
    writer.collect(Tokens(0, texts, ids, at_s=0.0, finish=finish))
    body = template_of(family, options).fill(meta, Reply(texts, ids, finish), prompt_tokens)
    assert body == writer.body()
