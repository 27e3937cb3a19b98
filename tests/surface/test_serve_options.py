"""Options of vLLM's command line that change answers, on both ways of a request."""

from __future__ import annotations

import re

from app.serving.api.identity import system_fingerprint
from app.serving.api.pipeline import ChatRules
from config.loader import load
from config.sections.api import ApiSettings


def test_the_fingerprint() -> None:
    for flags, fingerprint in (
        ((), r"vllm-0\.32\.0-[0-9a-f]{8}"),
        (("--tensor-parallel-size=4", "--data-parallel-size=2"), r"vllm-0\.32\.0-tp4-dp2-[0-9a-f]{8}"),
        (("--fingerprint-mode=hash", "--tensor-parallel-size=4"), r"vllm-0\.32\.0-[0-9a-f]{8}"),
        (("--fingerprint-mode=custom", "--fingerprint-value=mine"), "mine"),
        (("--fingerprint-mode=custom",), None),
        (("--fingerprint-mode=none",), None),
    ):
        told = system_fingerprint(load(flags, {}))
        assert told is None if fingerprint is None else told and re.fullmatch(fingerprint, told)


def test_nothing_of_it_is_there_by_default() -> None:
    rules = ChatRules.of(ApiSettings())
    assert not (rules.trusts_templates or rules.template_kwargs or rules.hides_unused_tools)
