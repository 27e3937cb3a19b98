"""Traces in the spellings of other programs: numbers, blank rows, failed requests, block sizes."""

import json
from pathlib import Path
from typing import Any

import pytest

from config import ConfigError
from workbench.load.loads import LoadTrace
from workbench.runs.column_traces import parse_columns
from workbench.runs.traces import TraceOptions, read_trace

OWN = "arrival_s,input_tokens,output_tokens\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURSTGPT = "Timestamp,Request tokens,Response tokens\n"


def load_of(folder: Path, content: object, **options: Any) -> LoadTrace:
    """The load of a file with a text, or with the JSON of a list's items as lines."""
    path = folder / "trace"
    if isinstance(content, list):
        content = "\n".join(map(json.dumps, content)) + "\n"
    path.write_text(str(content))
    return read_trace(path, options=TraceOptions(**options))


def tokens_of(load: LoadTrace) -> list[tuple[int, int]]:
    return list(zip(load.input_tokens, load.output_tokens, strict=True))


def mooncake(**fields: Any) -> dict[str, Any]:
    return {"timestamp": 0, "input_length": 100, "output_length": 10, "hash_ids": [1], **fields}


@pytest.mark.parametrize(
    "text",
    [
        OWN + "0,100.0,10\n",
        OWN + "0, 1e2 ,10.\n",
        AZURE + "2023-11-16 18:17:03.9799600,100.0,10.0\n",
        BURSTGPT + "5.0,100.0,10.0\n",
        json.dumps(mooncake(input_length=100.0, output_length=10.0)),
    ],
)
def test_whole_number_may_be_written_as_a_float(tmp_path: Path, text: str) -> None:
    assert tokens_of(load_of(tmp_path, text)) == [(100, 10)]


@pytest.mark.parametrize("text", [OWN + "0,100.5,10\n", json.dumps(mooncake(input_length=100.5))])
def test_part_of_a_token_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"'100\.5' must be a whole number"):
        load_of(tmp_path, text)


@pytest.mark.parametrize("header", [OWN, AZURE, BURSTGPT])
def test_blank_rows_of_csv_are_skipped(tmp_path: Path, header: str) -> None:
    time = "2023-11-16 18:17:03" if header is AZURE else "0"
    load = load_of(tmp_path, f"{header}{time},100,10\n\n , ,\n{time},100,10\n\n")
    assert tokens_of(load) == [(100, 10)] * 2
    assert load.left_out == 0


@pytest.mark.parametrize("output", ["0", "", "0.0", "NaN", "nan", "null"])
@pytest.mark.parametrize("header", [OWN, BURSTGPT])
def test_rows_without_tokens_are_failed_requests(tmp_path: Path, header: str, output: str) -> None:
    load = load_of(tmp_path, f"{header}0,100,{output}\n1,100,10\n")
    assert tokens_of(load) == [(100, 10)]
    assert load.left_out == 1


def test_failed_requests_of_mooncake_are_left_out(tmp_path: Path) -> None:
    rows = [mooncake(output_length=output) for output in (0, None, float("nan"), 10)]
    load = load_of(tmp_path, rows)
    assert tokens_of(load) == [(100, 10)]
    assert load.left_out == 3


def test_session_whose_first_turn_failed_keeps_its_arrival(tmp_path: Path) -> None:
    header = "arrival_s,input_tokens,output_tokens,session,think_s\n"
    load = load_of(tmp_path, f"{header}0,9,1,b,\n2,9,0,a,\n,9,1,a,1\n,30,1,a,1\n")
    assert list(load.arrival_s) == [0, 2, 2]
    assert load.next_turns() == {1: 2}


BENCHMARK: dict[str, Any] = {
    "input_lens": [100, 100, 100.0],
    "output_lens": [10, 0, 10],
    "start_times": [1.0, 1.5, 2.0],
    "ttfts": [0.1, 0.0, 0.1],
    "itls": [[0.02], [], [0.02]],
    "errors": ["", "boom", ""],
    "mean_ttft_ms": float("nan"),
}


@pytest.mark.parametrize("indent", [None, 1])
def test_failed_requests_of_a_benchmark_are_left_out_of_a_load(
    tmp_path: Path, indent: int | None
) -> None:
    load = load_of(tmp_path, json.dumps(BENCHMARK, indent=indent))
    assert tokens_of(load) == [(100, 10)] * 2
    assert list(load.arrival_s) == [0.0, 1.0]
    assert load.left_out == 1


BAILIAN = {
    "chat_id": 159,
    "parent_chat_id": -1,
    "timestamp": 61.114,
    "input_length": 521,
    "output_length": 132,
    "type": "text",
    "turn": 1,
    "hash_ids": list(range(1089, 1122)),
}


def test_bailian_has_blocks_of_sixteen_tokens_and_times_in_seconds(tmp_path: Path) -> None:
    load = load_of(tmp_path, [BAILIAN, {**BAILIAN, "timestamp": 62.614}])
    assert load.node_tokens == 16
    assert list(load.arrival_s) == [0.0, 1.5]
    assert list(load.prefix_tokens) == [521, 521]
    assert load.path(0) == load.path(1)


def test_published_bailian_rows_are_read(tmp_path: Path) -> None:
    """Columns as in qwen_traceA_blksz_16.jsonl: whole chats, searches, and images."""
    root = {**BAILIAN, "chat_id": 55, "timestamp": 0.0, "input_length": 20, "hash_ids": [7, 8]}
    turn = {**BAILIAN, "parent_chat_id": 55, "turn": 2, "timestamp": 61.114}
    turn |= {"input_length": 50, "hash_ids": [7, 9, 10, 11], "type": "search"}
    failed = {**BAILIAN, "timestamp": 3.5, "output_length": 0, "type": "image"}
    load = load_of(tmp_path, [root, turn, failed])
    assert list(load.arrival_s) == [0.0, 61.114]
    assert tokens_of(load) == [(20, 132), (50, 132)]
    assert load.node_tokens == 16
    first, second = load.path(0), load.path(1)
    assert (len(first), len(second)) == (2, 4)
    assert first[0] == second[0]
    assert load.left_out == 1


BURSTGPT_1 = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
BURSTGPT_3 = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
)
SESSION = "0f0a6c5e-6b0f-4f7e-9c5b-3d8a1e2b4c6d"


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        (
            BURSTGPT_1,
            [
                "5,ChatGPT,472,18,490,Conversation log",
                "45,ChatGPT,1087,0,1087,Conversation log",
                "118,GPT-4,417,276,693,API log",
            ],
        ),
        (
            BURSTGPT_3,
            [
                f"5.0,{SESSION},1.93,ChatGPT,472,18,490,Conversation log",
                f"45.0,{SESSION},0.2,ChatGPT,1087,0,1087,Conversation log",
                "118.0,,12.5,GPT-4,417,276,693,API log",
            ],
        ),
    ],
)
def test_published_columns_of_burstgpt_are_read(
    tmp_path: Path, header: str, rows: list[str]
) -> None:
    """Columns as in BurstGPT_1.csv and, with sessions and times, BurstGPT_3.csv."""
    load = load_of(tmp_path, "\n".join([header, *rows]) + "\n")
    assert list(load.arrival_s) == [0.0, 113.0]
    assert tokens_of(load) == [(472, 18), (417, 276)]
    assert load.left_out == 1


def test_block_size_follows_from_the_rows_or_is_an_option(tmp_path: Path) -> None:
    row = mooncake(input_length=521, hash_ids=list(range(33)))
    assert load_of(tmp_path, [row]).node_tokens == 16
    assert load_of(tmp_path, [mooncake(input_length=1000, hash_ids=[1, 2])]).node_tokens == 512
    assert load_of(tmp_path, [mooncake()], block_tokens=64).node_tokens == 64
    with pytest.raises(ConfigError, match="set --trace-block-size"):
        load_of(tmp_path, [row], block_tokens=512)


def dynamo(received_ms: int, hashes: list[int], **fields: Any) -> dict[str, Any]:
    replay = {"trace_block_size": 64, "input_length": 128, "input_sequence_hashes": hashes}
    return {
        "schema": "dynamo.request.trace.v1",
        "event_type": "request_end",
        "event_time_unix_ms": received_ms + 100,
        "request": {
            "request_id": "a",
            "request_received_ms": received_ms,
            "output_tokens": 4,
            "replay": replay,
            **fields,
        },
    }


def test_dynamo_request_trace_is_read_with_its_blocks(tmp_path: Path) -> None:
    tool = {"schema": "dynamo.request.trace.v1", "event_type": "tool_end", "tool": {}}
    wrapped = {"timestamp": 1, "event": dynamo(11_000, [10, 20])}
    failed = dynamo(12_000, [1, 2], output_tokens=0)
    load = load_of(tmp_path, [wrapped, tool, dynamo(10_000, [10, 30]), failed])
    assert list(load.arrival_s) == [0.0, 1.0]
    assert tokens_of(load) == [(128, 4)] * 2
    assert load.node_tokens == 64
    assert load.path(0)[0] == load.path(1)[0]
    assert load.left_out == 1


COLUMNS = "time=ts,input=prompt_tokens,output=completion_tokens"


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ("ts,prompt_tokens,completion_tokens\n7.5,100,10\n7,20.0,3\n\n8,5,0\n", COLUMNS),
        (
            "id;x,ts,prompt_tokens,completion_tokens\na,1700000000500,100,10\n"
            "a,1700000000000,20,3\na,1700000000900,,\n",
            COLUMNS,
        ),
        (
            [
                {"startTime": "2025-01-02T00:00:00.500Z", "usage": {"input": 100, "output": 10}},
                {"startTime": "2025-01-02T00:00:00.000Z", "usage": {"input": 20, "output": 3}},
                {"startTime": "2025-01-02T00:00:00.000Z", "usage": None},
            ],
            "time=startTime,input=usage.input,output=usage.output",
        ),
        (
            'startTime,usageDetails\n2025-01-02 00:00:00.500,"{""input"": 100, ""output"": 10}"\n'
            '2025-01-02 00:00:00,"{""input"": 20, ""output"": 3}"\n2025-01-02 00:00:00,\n',
            "time=startTime,input=usageDetails.input,output=usageDetails.output",
        ),
        (
            [{"t": 500, "i": 100, "o": 10}, {"t": 0, "i": 20, "o": 3}, {"t": 0, "i": 0, "o": 0}],
            "time=t:ms,input=i,output=o",
        ),
    ],
)
def test_columns_of_any_table_are_named_by_an_option(
    tmp_path: Path, content: object, columns: str
) -> None:
    load = load_of(tmp_path, content, columns=parse_columns(columns))
    assert list(load.arrival_s) == [0.0, 0.5]
    assert tokens_of(load) == [(20, 3), (100, 10)]
    assert load.left_out == 1


@pytest.mark.parametrize("text", ["time=a,input=b", "a", "time=a,input=b,output=c,cost=d", ""])
def test_option_for_columns_names_the_required_ones(text: str) -> None:
    with pytest.raises(ValueError, match=r"must (?:consist|also have)"):
        parse_columns(text)


def test_missing_column_is_named_with_the_columns_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no column ts; its columns are time, prompt_tokens"):
        load_of(tmp_path, "time,prompt_tokens,x\n1,2,3\n", columns=parse_columns(COLUMNS))


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ("TIMESTAMP,ContextTokens,Output\n", "Azure LLM inference (which also has Generated"),
        ([{"timestamp": 1, "output_length": 3}], "Mooncake or Bailian (which also has input_len"),
        ("[1, 2]", "item 1 is not a JSON object"),
        ("ts,prompt_tokens\n1,2\n", "name its columns with --trace-columns"),
    ],
)
def test_unknown_file_is_answered_with_the_formats_that_it_resembles(
    tmp_path: Path, content: object, kind: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_of(tmp_path, content)
    assert kind in str(caught.value)


def test_nanoseconds_since_1970_are_read_in_rows_of_milliseconds(tmp_path: Path) -> None:
    rows = [
        mooncake(timestamp="1753780607550317897"),
        mooncake(timestamp=1753780609550317897),
    ]
    assert list(load_of(tmp_path, rows).arrival_s) == pytest.approx([0.0, 2.0])


def test_rows_of_an_answer_of_an_api_are_in_its_list(tmp_path: Path) -> None:
    columns = parse_columns("time=startTime,input=usageDetails.input,output=usageDetails.output")
    times = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:03Z")
    usage = {"input": 50, "output": 10}
    rows: list[object] = [{"startTime": time, "usageDetails": usage} for time in times]
    load = load_of(tmp_path, [{"data": rows, "meta": {"page": 1}}], columns=columns)
    assert tokens_of(load) == [(50, 10), (50, 10)]
    assert list(load.arrival_s) == [0.0, 3.0]
    with pytest.raises(ConfigError, match="line 1: item 2 of data is not a JSON object"):
        load_of(tmp_path, [{"data": [rows[0], 3]}], columns=columns)
