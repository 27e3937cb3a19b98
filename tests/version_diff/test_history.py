"""The history of vLLM's names: how a release is added to it, and what it says of real servers."""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.core.base.metrics.families import engine_table
from scripts.version_diff.history import add_package, main, release_of, text_of
from scripts.version_diff.package import Package
from tests.needs import RECORDING
from vllm_facts.history import History, Lifetime, read_history, required_fields
from vllm_facts.names import Schema, has_begun, holds, value_in
from vllm_facts.version import DESCRIBED, PATCHES

NAMES = sorted(RECORDING.glob("vllm-*/names.json"))
"""Routes, schemas and metrics of real servers, from their /openapi.json and /metrics."""
CASES = [path.with_name("cases.jsonl") for path in NAMES]
ANSWERS = {
    "chat.completion": "ChatCompletionResponse",
    "chat.completion.chunk": "ChatCompletionStreamResponse",
    "text_completion": "CompletionResponse",
    "response": "ResponsesResponse",
}
"""`object` of an answer -> its class. Chunks of completions have fewer fields than completions."""
COMPARED = {
    "AnthropicMessagesRequest",
    "ChatCompletionRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "ErrorResponse",
    "ResponsesRequest",
    "StreamOptions",
    "TokenizeChatRequest",
    "TokenizeCompletionRequest",
}
"""Schemas that every server declares."""
ENGINE = "vllm/engine/arg_utils.py"
PROTOCOL = "vllm/entrypoints/protocol.py"
ROUTER = "vllm/entrypoints/api_router.py"
LOGGERS = "vllm/v1/metrics/loggers.py"
TEXTS = {
    "vllm/__init__.py": "",
    ENGINE: (
        "def make_arg_parser(parser):\n"
        "    parser.add_argument('--seed', type=int, default=0)\n"
        "    parser.add_argument('--dtype', choices=['auto', 'half'], default='auto')\n"
    ),
    PROTOCOL: (
        "class ChatRequest(BaseModel):\n"
        "    model: str\n"
        "    schema_: str = Field(default='', alias='schema')\n"
        "    secret: str = Field(default='', exclude=True)\n"
    ),
    ROUTER: (
        "router = APIRouter()\n"
        "@router.post('/old')\n"
        "async def old(request: ChatRequest): pass\n"
        "@router.post('/chat')\n"
        "async def chat(request: ChatRequest): pass\n"
    ),
    LOGGERS: (
        "class Logger:\n"
        "    def __init__(self):\n"
        "        labelnames = ['model_name', 'engine']\n"
        "        self._gauge_cls(name='vllm:running', labelnames=labelnames)\n"
    ),
}
NEXT_TEXTS = {
    **TEXTS,
    ENGINE: TEXTS[ENGINE].replace("'half'", "'half', 'fp8'").replace("default=0", "default=1")
    + (
        "    parser.add_argument('--first', action='store_true')\n"
        "    parser.add_argument('--second', nargs='+', type=str)\n"
        "    parser.add_argument('--third', nargs='?', type=str)\n"
    ),
    PROTOCOL: TEXTS[PROTOCOL] + "    extra: int | None = None\n",
    ROUTER: TEXTS[ROUTER].replace("@router.post('/old')\n", ""),
    LOGGERS: TEXTS[LOGGERS]
    + (
        "        if self.counts:\n"
        "            self._histogram_cls(name='vllm:sizes', buckets=[1, 2], "
        "labelnames=labelnames + ['kind'])\n"
    ),
}


def test_a_release_is_added_from_its_wheel(tmp_path: Path) -> None:
    file = tmp_path / "history.json"
    history = History()
    add_package(history, "0.33.0", Package(TEXTS))
    file.write_bytes(text_of(history))
    old_lines = file.read_text().splitlines()
    wheel = tmp_path / "vllm-0.34.0-cp38-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in NEXT_TEXTS.items():
            archive.writestr(path, text)
    assert main([str(wheel)], file) == 0
    history = read_history(file)
    assert history.releases == {"0.33": ["0.33.0"], "0.34": ["0.34.0"]}
    came = [("0.34", "")]
    takes = {name: value_in(life.takes, "0.34") for name, life in history.options.items()}
    assert takes == {
        "--dtype": "one", "--first": "nothing", "--second": "some", "--seed": "one",
        "--third": "maybe",
    }  # fmt: skip
    for name in ("--first", "--second", "--third"):
        assert history.options[name].periods == came
    assert history.options["--dtype"].choices_in("0.33") == ["auto", "half"]
    assert history.options["--dtype"].choices_in("0.34") == ["auto", "fp8", "half"]
    assert history.options["--seed"].changed_default("0.33", "0.34") == ("0.34", "0", "1")
    assert history.fields("ChatRequest", "0.33") == {"model", "schema"}
    assert history.fields("ChatRequest", "0.34.0") == {"model", "schema", "extra"}
    assert required_fields(history.schemas["ChatRequest"], "0.34") == {"model"}
    assert history.methods_in("0.33") == {"/old": {"POST"}, "/chat": {"POST"}}
    assert history.methods_in("0.34") == {"/chat": {"POST"}}
    assert history.metrics["vllm:running"].labels == [("", "model_name engine")]
    sizes = Lifetime(
        periods=came,
        kind="histogram",
        labels=[("0.34", "model_name engine kind")],
        buckets=[("0.34", "1 2")],
        conditions=[("0.34", "self.counts")],
        module=LOGGERS,
    )
    assert history.metrics["vllm:sizes"] == sizes
    new_lines = file.read_text().splitlines()
    changed = [line for line in new_lines if line not in old_lines]
    assert len(changed) <= 10


def test_both_ways_to_read_a_release_write_the_same_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "history.json"
    history = History()
    for release, texts in (("0.33.0", TEXTS), ("0.33.1", NEXT_TEXTS), ("0.34.0", TEXTS)):
        for path, text in texts.items():
            source = tmp_path / release / path
            source.parent.mkdir(parents=True, exist_ok=True)
            source.write_text(text)
        add_package(history, release, Package(texts))
    file.write_bytes(text_of(history))
    content = file.read_bytes()
    assert main(["--all", str(tmp_path)], file) == 0
    assert file.read_bytes() == content
    assert main([str(tmp_path / "0.33.1")], file) == 1
    assert "0.33.1 is not newer than 0.34.0" in capsys.readouterr().err
    assert file.read_bytes() == content
    assert read_history(file).options["--first"].periods == [("0.33.1", "0.34")]


@pytest.mark.parametrize(
    ("source", "release"),
    [
        ("0.34.0", "0.34.0"),
        ("v0.10.1.1", "0.10.1.1"),
        ("downloads/vllm-0.8.5.post1.tar.gz", "0.8.5.post1"),
        ("vllm-0.15.1-cp38-abi3-manylinux_2_31_x86_64.whl", "0.15.1"),
    ],
)
def test_a_distribution_has_the_release_in_its_name(source: str, release: str) -> None:
    assert release_of(source) == release


@pytest.mark.parametrize(
    ("first", "version", "is_there"),
    [
        ("", "0.6", True),
        ("0.11", "0.11", True),
        ("0.11", "0.11.0", True),
        ("0.11.1", "0.11.0", False),
        ("0.11.1", "0.11", True),  # a minor version means its last release
        ("0.10.1.1", "0.10.1", False),
        ("0.10.1.1", "v0.10.2", True),
        ("0.27.1", "0.27.1rc1", True),
        ("0.28", "0.27.1", False),
        ("0.9", "0.10", True),
    ],
)
def test_versions_are_compared_by_their_numbers(first: str, version: str, is_there: bool) -> None:
    assert has_begun(first, version) == is_there


def test_a_period_inside_of_a_minor_version_is_not_in_its_last_release() -> None:
    periods = [("0.11", "0.11.1"), ("0.13", "")]
    versions = ("0.10.2", "0.11.0", "0.11.1", "0.11", "0.12.0", "0.13.0", "0.33")
    assert [holds(periods, version) for version in versions] == [
        False, True, False, False, False, True, True,
    ]  # fmt: skip


def test_every_minor_version_is_there_with_each_kind_of_name() -> None:
    history = read_history()
    for minor in range(10, 34):
        version = f"0.{minor}"
        assert history.releases[version]
        assert len(history.fields("ChatCompletionRequest", version)) > 50
        assert {"prompt_tokens", "total_tokens"} <= history.fields("UsageInfo", version)
        assert history.methods_in(version)["/v1/completions"] == {"POST"}
        tables = (history.tool_parsers, history.reasoning_parsers, history.metrics)
        for table in (*tables, history.options, history.keys, history.variables):
            assert sum(lifetime.is_in(version) for lifetime in table.values()) > 5


@pytest.fixture(scope="module")
def history() -> History:
    return read_history()


@pytest.mark.parametrize("version", DESCRIBED)
def test_families_are_those_of_the_simulated_server(version: str, history: History) -> None:
    families = history.families_in(version)
    table = {spec.name: spec for spec in engine_table({})}
    assert families.keys() == table.keys()
    for name in families.keys() - {"vllm:cache_config_info"}:  # its labels differ by settings
        labels = value_in(families[name].labels, version) or ""
        assert set(labels.split()) == {*table[name].base, *table[name].extra}


@pytest.fixture(params=NAMES, ids=lambda path: path.parent.name)
def names(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The names of a real server; its version is one of them."""
    content: dict[str, Any] = json.loads(request.param.read_text())
    return content


@pytest.mark.shared
def test_routes_of_a_real_server(names: dict[str, Any], history: History) -> None:
    methods = history.methods_in(names["version"])
    for path, expected in names["routes"].items():
        assert set(expected) <= methods[path], path


@pytest.mark.shared
def test_fields_of_a_real_server(names: dict[str, Any], history: History) -> None:
    version = names["version"]
    compared = set()
    for name, expected in names["schemas"].items():
        schema = _schema_of(name, version, history)
        if schema is None:
            continue
        compared.add(name)
        assert schema.fields_in(version) == set(expected["fields"]), name
        assert required_fields(schema, version) == set(expected["required"]), name
    assert compared >= COMPARED


def _schema_of(name: str, version: str, history: History) -> Schema | None:
    """Returns the class of a schema; None for one of the package `openai`."""
    if name.startswith("openai__") or (name == "Logprob" and version == "0.19.1"):
        return None
    schema = history.schemas.get(name.rpartition("__")[2])
    if schema is None or not schema.is_in(version):
        return None
    return schema


@pytest.mark.shared
@pytest.mark.parametrize("file", CASES, ids=lambda path: path.parent.name)
def test_answers_of_a_real_server_have_fields_of_its_version(file: Path, history: History) -> None:
    version = file.parent.name.removeprefix("vllm-")
    compared = set()
    for line in file.read_text().splitlines():
        for answer in _answers_in(json.loads(line)["body"] or ""):
            name = ANSWERS.get(str(answer.get("object")))
            if name is not None:
                compared.add(name)
                assert answer.keys() <= history.fields(name, version)
    assert len(compared) >= 3


def _answers_in(body: str) -> Iterator[dict[str, Any]]:
    """Yields the objects in an answer, which may be a stream of events."""
    for line in body.splitlines():
        text = line.removeprefix("data: ")
        if text.startswith("{"):
            yield from _objects_in(json.loads(text))


def _objects_in(content: object) -> Iterator[dict[str, Any]]:
    if isinstance(content, dict):
        yield content
        for inner in content.values():
            yield from _objects_in(inner)
    elif isinstance(content, list):
        for inner in content:
            yield from _objects_in(inner)


@pytest.mark.shared
def test_metrics_of_a_real_server(names: dict[str, Any], history: History) -> None:
    version = names["version"]
    families = history.families_in(version)
    recorded = {
        name: family for name, family in names["metrics"].items() if not name.endswith("_created")
    }
    assert families.keys() == recorded.keys()
    for name, expected in recorded.items():
        metric = families[name]
        assert metric.kind == expected["type"]
        assert set((value_in(metric.labels, version) or "").split()) == set(expected["labels"])
        if metric.kind == "histogram":
            assert _bounds(value_in(metric.buckets, version) or "") == expected["buckets"], name


def _bounds(text: str) -> list[str]:
    """Returns the buckets as Prometheus writes them; the context of the servers has 2,048 tokens."""
    bounds = text.split()
    if text == "1-2-5":
        bounds = [str(digit * 10**power) for power in range(4) for digit in (1, 2, 5)]
        bounds = [bound for bound in bounds if int(bound) <= 2048]
    return [*(str(float(bound)) for bound in bounds), "+Inf"]


def test_last_patch_releases_are_those_of_the_history(history: History) -> None:
    last = {name: releases[-1] for name, releases in history.releases.items() if name in PATCHES}
    assert last == PATCHES
