"""Texts of grammars, for the tests of this folder."""

import json
from collections.abc import Iterator
from random import Random
from typing import Any

from app.extensions.forms.grammar.compiler import compile_grammar, compile_structural_tag
from app.extensions.forms.schema import Schemas
from app.extensions.forms.schema.derivation import Grammar, write
from config.settings import ToolSettings

SIZES = (0, 5, 30, 120)
SPOKEN = "said of this and that "


def grammar(source: str) -> Grammar:
    return compile_grammar(source, Schemas())


def tag(value: Any) -> Grammar:
    return compile_structural_tag(json.dumps(value), Schemas())


def texts(source: Grammar, seeds: int = 25) -> Iterator[str]:
    for seed in range(seeds):
        for size in SIZES:
            yield text(source, size, seed)


def text(source: Grammar, size: int = 0, seed: int = 1) -> str:
    return write(
        source, size, Random(seed), ToolSettings(), lambda length, rng: (SPOKEN * 9)[:length]
    )
