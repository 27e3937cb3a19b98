"""Every field of a request has its readers, or stands in the list of docs/limits.md."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields

from app.core.engine.sampling import RepetitionDetection, Sampling
from app.core.protocol.chat import ChatCompletionRequest
from app.core.protocol.completions import CompletionRequest
from app.core.protocol.options import FLAT_TRANSFER, GenerationFields
from app.extensions.console.details import client_settings
from app.extensions.grpc.messages import engine
from app.extensions.scale_out.protocol import SamplingParams
from scripts.unread_fields import LIMITS_PAGE, SERVED_WITHOUT, UNREAD, limits_page
from tests.core.engine.harness import engine_request
from tests.syntax import tree_of

APP = Path(__file__).parents[2] / "app"
SIMULATED = (APP / "core/engine/simulated").glob("*.py")
REAL = (APP / "extensions/llm").glob("*.py")
ENDINGS = APP / "core/engine/endings.py"
GRPC = APP / "extensions/grpc/generate.py"
RECORD = APP / "core/engine/sampling.py"


def attributes(tree: ast.AST) -> set[str]:
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def names_behind(function: str) -> set[str]:
    """Names that a function of `ENDINGS` reads, with the functions of the module that it calls."""
    functions = {
        node.name: node
        for node in ast.parse(ENDINGS.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    waiting = [function]
    names: set[str] = set()
    while waiting:
        node = functions.pop(waiting.pop())
        names |= attributes(node)
        called = {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
        waiting += called & functions.keys() - set(waiting)
    return names


def read_names(files: Iterable[Path], names: Iterable[str] = ()) -> set[str]:
    """`names`, and those of the attributes that the files read, and of fields behind properties."""
    names = set(names)
    for file in files:
        names |= attributes(tree_of(file))
    for name, read in properties():
        if name in names:
            names |= read
    return names


def properties() -> Iterator[tuple[str, set[str]]]:
    for node in ast.walk(ast.parse(RECORD.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            yield node.name, attributes(node)


SAMPLING = set(Sampling.__struct_fields__)
DESCRIBED = {field.name for field in engine.SamplingParams.DESCRIPTOR.fields}


@pytest.mark.parametrize(
    ("reader", "names"),
    [
        ("simulated engine", read_names(SIMULATED, names_behind("ended"))),
        ("real engine", read_names(REAL, names_behind("end_of_tokens"))),
        ("gRPC", DESCRIBED),
        ("generate", set(SamplingParams.__struct_fields__)),
    ],
)
def test_each_sampling_parameter_is_read_or_listed(reader: str, names: set[str]) -> None:
    assert SAMPLING - names == set(SERVED_WITHOUT.get(reader, {})), reader


@pytest.mark.parametrize("request_type", [ChatCompletionRequest, CompletionRequest])
def test_chats_and_completions_can_set_each_sampling_parameter(request_type: type) -> None:
    assert SAMPLING - set(request_type.__struct_fields__) == set()


def test_grpc_passes_on_every_parameter_of_its_protobuf() -> None:
    repeated = {f.name for f in engine.SamplingParams.DESCRIPTOR.fields if f.is_repeated}
    single = (DESCRIBED - repeated) & set(CompletionRequest.__struct_fields__)
    named = attributes(ast.parse(GRPC.read_text("utf-8")))
    assert (DESCRIBED & SAMPLING) - single - named == set()


def changed_value(name: str) -> Any:
    """A value other than the default."""
    default = next(field.default for field in fields(Sampling) if field.name == name)
    if name == "repetition_detection":
        return RepetitionDetection(max_pattern_size=1, min_count=2)
    if isinstance(default, bool):
        return not default
    if isinstance(default, int | float):
        return default + 1
    if default is None and name != "allowed_token_ids":
        return 3
    return (3,)


@pytest.mark.parametrize("name", sorted(SAMPLING - {"logit_bias"}))
def test_details_of_a_choice_show_every_sampling_parameter(name: str) -> None:
    request = engine_request(**{"ignore_eos": False, name: changed_value(name)})
    assert name in client_settings(request)


def test_fields_without_any_reader_are_listed_and_few() -> None:
    declared = {*ChatCompletionRequest.__struct_fields__, *CompletionRequest.__struct_fields__}
    declarations = APP / "core/protocol/options.py"
    files = [file for file in APP.rglob("*.py") if file != declarations]
    llm_library = {APP / "extensions/llm/sampling_params.py"}
    names = read_names(set(files) - llm_library)
    assert declared - names - SAMPLING - set(FLAT_TRANSFER) == set(UNREAD)
    assert len(UNREAD) <= 7 and set(UNREAD) <= set(GenerationFields.__struct_fields__)
    assert {"stream_interval", "length_penalty"} <= names


def test_limits_page_equals_the_generated_lists() -> None:
    assert LIMITS_PAGE.read_text("utf-8") == limits_page(), "python -m scripts.reference_pages"
