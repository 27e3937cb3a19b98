"""Traces: the columns of each known format, and one line for each mistake."""

import gzip
import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config import ConfigError
from workbench.load.loads import NO_GROUP
from workbench.runs.traces import read_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,0
2023-11-16 18:17:04.1781100,110,27
"""
BURSTGPT = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5.0,,3,ChatGPT,4808,10,4818,API log
5.052,,1,GPT-4,3180,0,3180,API log
5.198150,1722ac82,3,ChatGPT,110,27,137,Conversation log
"""
TREE = [[0, 1, 2], [0, 1, 3], [7], [0, 4, 2], [7, 2]]
SIZES = [1100, 1537, 512, 1536, 1000]
MOONCAKE = "".join(
    f'{{"timestamp": {27482 + 40 * place}, "input_length": {tokens}, "output_length": 5, "hash_ids": {ids}}}'
    "\n"
    for place, (tokens, ids) in enumerate(zip(SIZES, TREE, strict=True))
)
BENCHMARK = json.dumps(
    {
        "input_lens": [110, 4808], "output_lens": [27, 10], "start_times": [9.19815, 9.0],
        "ttfts": [0.2, 0.1], "itls": [[0.02], [0.04]], "total_output_tokens": 37,
    }
)  # fmt: skip
SESSIONS = "arrival_s,input_tokens,output_tokens,session,think_s\n"
HEADER = "arrival_s,input_tokens,output_tokens\n"
GROUPED = "arrival_s,input_tokens,output_tokens,prefix_group,prefix_tokens\n"


def trace(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_trace_columns_are_found_by_name(tmp_path: Path) -> None:
    load = read_trace(
        trace(tmp_path, "note,output_tokens,arrival_s,input_tokens\nx,3,0.5,10\n,4,0.5,20\n")
    )
    assert (list(load.arrival_s), list(load.input_tokens)) == ([0.5, 0.5], [10, 20])
    assert list(load.output_tokens) == [3, 4]
    assert not load.group
    (path := tmp_path / "packed.csv").write_bytes(gzip.compress((HEADER + "1,2,3\n").encode()))
    assert list(read_trace(path).output_tokens) == [3]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        AZURE,
        re.sub(r"(\.\d{6})0", r"\1+00:00", AZURE),
        BURSTGPT,
        re.sub(r"(?m)^([\w.]+),[^,]*,[^,]*,", r"\1,", BURSTGPT),
        BENCHMARK,
    ],
)
def test_public_trace_is_read_even_if_its_format_is_not_named(
    tmp_path: Path, text: str, packed: bool
) -> None:
    (path := tmp_path / "load").write_bytes(
        gzip.compress(text.encode()) if packed else text.encode()
    )
    load = read_trace(path)
    assert list(load.arrival_s) == [0.0, pytest.approx(0.19815)]
    assert (list(load.input_tokens), list(load.output_tokens)) == ([4808, 110], [10, 27])
    assert load.left_out == (text is not BENCHMARK)
    assert load.origin == str(path)


def test_hash_ids_of_a_trace_become_paths_in_a_tree_of_shared_prefixes(tmp_path: Path) -> None:
    load = read_trace(trace(tmp_path, MOONCAKE))
    assert list(load.arrival_s) == pytest.approx([0.0, 0.04, 0.08, 0.12, 0.16])
    paths = [load.path(number) for number in range(5)]
    assert [len(path) for path in paths] == [len(ids) for ids in TREE]
    assert (
        paths[0][:2] == paths[1][:2] and paths[3][0] == paths[0][0] and paths[4][0] == paths[2][0]
    )
    # An id below another parent is another beginning.
    assert len({node for path in paths for node in path}) == 8
    assert list(load.prefix_tokens) == [1100, 1536, 512, 1536, 1000]


def test_turns_of_a_trace_session_are_linked_in_row_order(tmp_path: Path) -> None:
    rows = "0,10,5,a,\n1,9,1,,\n2,7,3,b,9\n,15,5,a,0.5\n0,30,5,a,2\n,12,1,b,0\n"
    load = read_trace(trace(tmp_path, SESSIONS + rows))
    assert list(load.session) == [0, NO_GROUP, 1, 0, 0, 1]
    assert load.next_turns() == {0: 3, 3: 4, 2: 5}
    assert list(load.think_s) == [0, 0, 0, 0.5, 2, 0]
    assert list(load.arrival_s) == [0, 1, 2, 2, 2, 2]


def test_prefix_groups_of_a_trace_are_numbered_by_first_appearance(
    tmp_path: Path,
) -> None:
    path = trace(
        tmp_path, GROUPED + "0,9,1,sales,8\n1,9,1,,\n2,9,1,help,4\n3,9,1,sales,9\n4,9,1,sales,0\n"
    )
    load = read_trace(path)
    assert list(load.group) == [0, NO_GROUP, 1, 0, NO_GROUP]
    assert list(load.prefix_tokens) == [8, 0, 4, 9, 0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            HEADER + "2,1,1\n1,1,1\n",
            ", row 3: arrival_s 1 is earlier than the arrival_s of the previous row",
        ),
        (HEADER + "1.7e308,1,1\n", ", row 2: arrival_s '1.7e308' must be a number of seconds"),
        (
            HEADER + "nan,1,1\n",
            ", row 2: arrival_s 'nan' must be a number of seconds from 0 to 1e+300",
        ),
        (
            HEADER + "1,1.5,1\n",
            ", row 2: input_tokens '1.5' must be a whole number from 1 to 1073741824",
        ),
        (HEADER + "1,0,1\n", " has no rows with tokens"),
        (
            HEADER + "1,1," + "9" * 5000 + "\n",
            f", row 2: output_tokens '{'9' * 40}' must be a whole number",
        ),
        (HEADER + "1,1,1\n\n2,x,1\n", ", row 4: input_tokens 'x' must be a whole number"),
        (HEADER + "1,1,1\n2,1\n", ", row 3: the row has 2 fields, but more are required"),
        (HEADER + '1,1,"1\n', ", row 2: unexpected end of data"),
        ("", " is empty"),
        (HEADER, " has no rows"),
        (HEADER.replace("\n", ",class\n") + "0,1,1,\n", ", row 2: class is empty"),
        ("arrival_s,input_tokens\n", ", row 1: column output_tokens is missing"),
        ("arrival_s,arrival_s,input_tokens,output_tokens\n", ", row 1: column arrival_s is twice"),
        (GROUPED.replace(",prefix_tokens", ""), ", row 1: column prefix_tokens is missing"),
        (GROUPED + "0,9,1,a,10\n", ", row 2: prefix_tokens 10 must not exceed input_tokens 9"),
        (
            SESSIONS + "0,9,1,a,\n,10,1,a,-1\n",
            ", row 3: think_s '-1' must be a number of seconds from 0 to",
        ),
        (
            SESSIONS + "0,9,1,a,\n,9,1,a,0\n",
            ", row 3: input_tokens 9 must not be less than the 10",
        ),
        (
            SESSIONS + ",9,1,a,0\n",
            ", row 2: arrival_s '' must be a number of seconds from 0 to 1e+300",
        ),
        (SESSIONS.replace(",think_s", ""), ", row 1: column think_s is missing"),
        (
            AZURE.replace("18:17:04.1", "25:17:04.1"),
            ", row 4: TIMESTAMP '2023-11-16 25:17:04.1781100' must be",
        ),
        (AZURE.replace("110", "-110"), ", row 4: ContextTokens '-110' must be a whole number"),
        (
            BURSTGPT.replace("Response tokens", "Tokens"),
            "; it resembles BurstGPT (which also has Response tokens)",
        ),
        (BURSTGPT.splitlines()[0] + "\n1,,1,GPT-4,3,0,3,x\n", " has no rows with tokens"),
        (MOONCAKE.replace("1537", '"x"'), ", line 2: input_length 'x' must be a whole number"),
        (
            MOONCAKE.replace("[7]", "[7, 8]"),
            ", request 3: got 2 block hashes, but 512 tokens have at most 1 blocks of 512 tokens",
        ),
        (MOONCAKE.replace("27482", "-1"), ", line 1: timestamp '-1' must be a time from 0"),
        (MOONCAKE + "{", ", line 6: "),
        (MOONCAKE + '{"x": ' + "[" * 10000, ", line 6: the data is nested too deeply"),
        (BENCHMARK + "\n" + BENCHMARK, " contains 2 runs, but a load must consist of a single run"),
        ('{"a": 1}', " has no known format; its columns or keys are a; it resembles none of"),
        (b"\xff\xfe\x00", " must be UTF-8 text"),
        (gzip.compress(HEADER.encode(), mtime=0)[:-9], " cannot be decompressed"),
    ],
)
def test_invalid_traces_are_rejected_with_a_one_line_error(
    tmp_path: Path, text: str | bytes, reason: str
) -> None:
    (path := tmp_path / "trace.csv").write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ConfigError) as caught:
        read_trace(path)
    message = str(caught.value)
    assert message.startswith(str(path)) and reason in message and "\n" not in message


@settings(max_examples=25, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["", HEADER, SESSIONS, AZURE, BURSTGPT, MOONCAKE]))
def test_trace_reader_raises_only_config_errors_for_any_file(content: bytes, start: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        path.write_bytes(start.encode() + content)
        try:
            load = read_trace(path)
        except ConfigError as error:
            assert str(path) in str(error)
        else:
            assert len(load.arrival_s) == len(load.input_tokens) == len(load.output_tokens) > 0
            assert list(load.arrival_s) == sorted(load.arrival_s)
