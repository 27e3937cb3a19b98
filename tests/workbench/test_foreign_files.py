"""Hostile files of load tools and models: their readers raise at most ConfigError."""

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from config import ConfigError
from tests.drawn import drawn_examples
from tests.hostile_data import hostile_contents
from tests.hostile_files import damaged_files, retyped_documents
from tests.workbench.runs.test_span_traces import message, span
from tests.workbench.runs.test_trace_spellings import BAILIAN, BURSTGPT_3, dynamo
from vllm_facts.known_models import config_of
from workbench.drills.report import read_figures
from workbench.judge.exports import read_export
from workbench.judge.served import read_journal
from workbench.runs.benchmark_files import read_recordings
from workbench.runs.column_traces import parse_columns
from workbench.runs.traces import TraceOptions, read_trace

EXPORTS = Path(__file__).parent / "judge" / "exports"
AGENT_TRACE = (
    b'{"id": "x", "models": ["m"], "block_size": 64, "requests": [{"type": "n", "t": 0, "model": '
    b'"m", "in": 64, "out": 10, "hash_ids": [1], "api_time": 1.0}]}\n'
)
MOONCAKE = b'{"timestamp": 5, "input_length": 600, "output_length": 9, "hash_ids": [1, 2]}\n' * 2
SESSIONS = (
    b'{"session_id": "a", "timestamp": 5, "input_length": 600, "output_length": 9, "delay": 3,'
    b' "hash_ids": [1, 2], "text_input": "Hi", "messages": [{"content": [{"text": "a"}]}]}\n'
) * 2
INFERENCE_PERF = (
    b"load:\n  type: constant\n  stages: [{rate: 1, duration: 5}]\n"
    b"data:\n  type: random\n  input_distribution: {min: 5, max: 9, mean: 7}\n"
)


def read_trace_at(path: str) -> object:
    return read_trace(Path(path))


def read_figures_at(path: str) -> object:
    return read_figures(Path(path))


def read_columns_at(path: str) -> object:
    columns = parse_columns("time=ts,input=usage.in,output=out,end=end,session=who")
    return read_trace(Path(path), options=TraceOptions(columns=columns))


def json_line(document: object) -> bytes:
    return json.dumps(document).encode() + b"\n"


SPANS = message(
    span(1, 0, 1, (100, 10), attributes={"gen_ai.conversation.id": "c"}, status={"code": 1}),
    span(2, 2, 3, (120, 10), attributes={"gen_ai.conversation.id": "c"}, parentSpanId="s0"),
)
COLUMNS = {"ts": "2026-01-01T00:00:00Z", "usage": {"in": 5}, "out": 6, "end": 1.5e9, "who": "a"}
BURSTGPT = f"{BURSTGPT_3}\n5.0,s,1.9,ChatGPT,472,18,490,log\n9,,2,GPT-4,417,276,693,log\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
TRACES: list[tuple[Callable[[str], object], bytes]] = [
    (read_trace_at, MOONCAKE),
    (read_trace_at, SESSIONS),
    (read_trace_at, json_line(BAILIAN)),
    (read_trace_at, json_line(dynamo(5, [1, 2]))),
    (read_trace_at, json_line(SPANS)),
    (read_trace_at, BURSTGPT.encode()),
    (read_trace_at, AZURE.encode()),
    (read_columns_at, json_line(COLUMNS)),
]
READERS: list[tuple[Callable[[str], object], bytes]] = [
    (read_trace_at, AGENT_TRACE),
    (read_trace_at, MOONCAKE),
    (read_trace_at, SESSIONS),
    (read_trace_at, b"arrival_s,input_tokens,output_tokens\n0,100,10\n1,5,5\n"),
    (read_trace_at, INFERENCE_PERF),
    (read_recordings, (EXPORTS / "vllm-0.32.0.json").read_bytes()),
    (read_export, (EXPORTS / "guidellm-0.8.1.json").read_bytes()),
    (read_export, (EXPORTS / "aiperf-0.13.0.jsonl").read_bytes()),
    (read_export, (EXPORTS / "inference-perf-0.7.0.json").read_bytes()),
    (read_export, (EXPORTS / "locust-2.47.0.jsonl").read_bytes()),
    (read_journal, (EXPORTS / "vllm-0.32.0.journal.json").read_bytes()),
    (read_figures_at, b'{"figures": {}}'),
    (config_of, b'{"hidden_size": 64, "num_hidden_layers": 2}'),
]


@pytest.mark.parametrize(("read", "good"), READERS)
@drawn_examples(60, suppressed=list(HealthCheck))
@given(data=st.data())
def test_hostile_file_raises_at_most_a_one_line_config_error(
    read: Callable[[str], object], good: bytes, data: st.DataObject
) -> None:
    content = data.draw(hostile_contents(good))
    with TemporaryDirectory() as folder:
        path = Path(folder, "file.json")
        path.write_bytes(content)
        try:
            read(str(path))
        except ConfigError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("read", dict.fromkeys(read for read, _ in READERS))
@pytest.mark.parametrize("content", [b"", b"\x0b", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n", b" \x0c\n"])
def test_file_without_text_is_refused_in_one_line(
    tmp_path: Path, read: Callable[[str], object], content: bytes
) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as refusal:
        read(str(path))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("read", "good"), TRACES)
def test_damaged_trace_is_read_or_refused_with_a_line_that_names_the_file(
    tmp_path: Path, read: Callable[[str], object], good: bytes
) -> None:
    contents = damaged_files(good)
    if good.startswith(b"{"):
        for place, document in retyped_documents(json.loads(good.splitlines()[0])):
            contents[place] = json_line(document)
    path = tmp_path / "trace"
    path.write_bytes(good)
    read(str(path))
    for name, content in contents.items():
        path.write_bytes(content)
        try:
            read(str(path))
        except ConfigError as error:
            assert "\n" not in str(error), name
            assert str(path) in str(error), name
