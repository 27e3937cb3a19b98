"""A model that thinks first, and then writes a text of a form."""

import json
import re
from pathlib import Path
from shutil import copyfile
from typing import Any

import jsonschema
import pytest
from tokenizers import AddedToken, Tokenizer

from app.core.engine.choice_request import TextForm, Thoughts
from app.core.text.huggingface import EMBEDDED
from app.extensions.llm.llm import LLM
from app.extensions.llm.sampling_params import SamplingParams
from tests.extensions.llm.test_server import serving
from tests.extensions.llm.tiny import Shape, make_model
from tests.hostile.raw_client import post

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

TEMPLATE = """{{ messages[-1].content }}{% if opened is defined %}<think>
{% elif enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}"""
SCHEMA = {"type": "object", "properties": {"n": {"type": "boolean"}}, "required": ["n"]}
SCHEMA["additionalProperties"] = False
REGEX = "[ab]{6}"
LIKELY = 60.0
"""Added to a logit it makes a token as likely as the others of which that is said, and others
impossible.
"""


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with the tags of thoughts in its vocabulary."""
    path = tmp_path_factory.mktemp("thinker")
    tokenizer = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
    tokenizer.add_tokens(
        [AddedToken(tag, special=False, normalized=False) for tag in ("<think>", "</think>")]
    )
    make_model(path, Shape("qwen3"), vocabulary=tokenizer.get_vocab_size())
    tokenizer.save(str(path / "tokenizer.json"))
    copyfile(EMBEDDED / "tokenizer_config.json", path / "tokenizer_config.json")
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return path


@pytest.fixture(scope="module")
def tags(thinker: Path) -> tuple[int, int]:
    tokenizer = Tokenizer.from_file(str(thinker / "tokenizer.json"))
    return tokenizer.token_to_id("<think>"), tokenizer.token_to_id("</think>")


def test_structured_output_constraint_applies_only_after_the_reasoning(
    thinker: Path, tags: tuple[int, int]
) -> None:
    begin, end = tags
    thoughts = Thoughts(end_id=end, begin_id=begin)
    likely = {begin: LIKELY, end: LIKELY}
    with LLM(str(thinker), "cpu", num_blocks=256, max_seq_length=512) as llm:

        def reply_text(
            thoughts: Thoughts | None, bias: dict[int, float], seed: int, tokens: int = 200
        ) -> str:
            form = TextForm(regex=REGEX, thoughts=thoughts)
            params = SamplingParams(
                structured_outputs=form, logit_bias=bias, seed=seed, max_tokens=tokens
            )
            result = llm.generate_single("Hello", params)
            return str(result.get("error") or result["generated_text"])

        for seed in range(3):
            assert re.fullmatch(
                rf"(?s).*?</think>{REGEX}", reply_text(Thoughts(end_id=end), likely, seed)
            )
            assert re.fullmatch(
                rf"(?s)<think>.*?</think>{REGEX}", reply_text(thoughts, likely, seed)
            )
        text = reply_text(Thoughts(end_id=end), {end: -LIKELY}, seed=1, tokens=30)
        assert len(text) > 20 and not set(text) <= set("ab")
        # Who does not begin to think writes the form at once.
        assert re.fullmatch(REGEX, reply_text(thoughts, {begin: -LIKELY}, seed=1))
        assert "reasoning tags" in reply_text(Thoughts(end_id=1_000_000), {}, seed=1)


def test_server_separates_reasoning_from_constrained_output(
    thinker: Path, tags: tuple[int, int]
) -> None:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "What is this"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA}},
        "logit_bias": {str(tag): LIKELY for tag in tags},
        **{"max_tokens": 200, "seed": 5, "n": 4},
    }
    with serving(thinker, "--reasoning-parser", "qwen3", "--seed", "3") as server:
        for kwargs, thinks in (
            ({"opened": True}, True),
            ({}, True),
            ({"enable_thinking": False}, False),
        ):
            answer = post(
                server.port, body | {"chat_template_kwargs": kwargs}, "/v1/chat/completions"
            )
            assert answer.status == 200, answer.body
            choices = answer.json()["choices"]
            assert {choice["finish_reason"] for choice in choices} == {"stop"}
            for choice in choices:
                jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)
            assert any(choice["message"]["reasoning"] for choice in choices) == thinks
