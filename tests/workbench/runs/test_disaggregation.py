"""Prefill and decode on pods of their own:

what a request passes through, and what the pods hold.
"""

from math import inf
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.engine.profile import read_profile
from app.extensions.costs.datasheet import datasheet_profile
from tests.callbacks import ignore
from tests.workbench.runs.test_command import SHAPE, figures, refusal
from tests.workbench.runs.test_simulation import ENGINE, PLAIN, REAL, REQUESTS, load_of
from workbench.load.policies import POLICIES
from workbench.runs.disaggregation import Disaggregation
from workbench.runs.simulate import run
from workbench.runs.simulation import Simulation, SimulationPlan

LOAD = ["--rate", "20", "--seconds", "5", "--input-tokens", "2000", "--output-tokens", "30"]
SPLIT = [*LOAD, "--prefill-pods", "2", "--decode-pods", "1"]


def simulated(
    load: Any,
    prefill: int = 1,
    decode: int = 1,
    bandwidth: float = inf,
    watch: Any = None,
    **options: Any,
) -> Any:
    """A simulation that has run; a block has 4 bytes, a transfer takes 50 ms besides."""
    split = Disaggregation(
        prefill_pods=prefill,
        decode_pods=decode,
        bytes_per_token=1,
        bandwidth=bandwidth,
        latency_s=0.05,
    )
    plan = SimulationPlan(
        disaggregation=split, pods=prefill + decode, **{"profile": PLAIN, **options}
    )
    simulation = Simulation(load, plan, ignore, watch)
    simulation.run()
    return simulation


def test_prompt_is_prefilled_then_transferred_then_decoded() -> None:
    # Both prompts are one step, and share the link: 3 blocks take 0.12 s each.
    outcome = simulated(load_of([(1.0, 10, 3), (0.0, 9, 1)]), bandwidth=100.0).outcome
    transfers = outcome.transfers
    assert list(transfers.prefilled_s) == list(transfers.begin_s) == pytest.approx([1.01, 1.01])
    assert list(transfers.end_s) == pytest.approx([1.18, 1.30])
    # The last token of a prompt is computed again, which gives the first token of the answer.
    assert [*outcome.first_s, *outcome.last_s] == pytest.approx([1.19, 1.31, 1.21, 1.31])
    prefill, decode = transfers.pools()
    assert sum(prefill.blocks) == pytest.approx(6 * 0.01 + 3 * 0.17 + 3 * 0.29)
    assert (prefill.max_blocks, decode.max_blocks, prefill.max_sequences, transfers.bytes) == (
        6,
        6,
        2,
        24,
    )


def test_transfer_waits_for_free_decode_blocks() -> None:
    # A pool of 39 blocks has room for one prompt of 20 blocks, which three steps compute.
    outcome = simulated(load_of([(0.0, 80, 10)] * 2), bandwidth=40.0).outcome
    transfers = outcome.transfers
    assert transfers.end_s[0] - transfers.begin_s[0] == pytest.approx(2.05)
    assert (
        transfers.prefilled_s[1]
        == transfers.seen_s[1]
        == pytest.approx(transfers.end_s[0] + 3 * 0.01)
    )
    assert transfers.seen_s[1] < transfers.begin_s[1] == pytest.approx(outcome.last_s[0])


@settings(max_examples=40, deadline=None)
@given(
    REQUESTS,
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 70)), min_size=25, max_size=25)
    | st.just([]),
    st.sampled_from(POLICIES),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.sampled_from([inf, 2000.0, 100.0]),
    st.none() | st.integers(1, 6),
)
def test_disaggregated_simulation_loses_no_requests_and_no_blocks(
    requests: list[tuple[float, int, int]],
    groups: Any,
    policy: str,
    pods: Any,
    rate: float,
    places: Any,
) -> None:
    load = load_of(requests, groups[: len(requests)])
    simulation = simulated(load, *pods, rate, profile=REAL, policy=policy, in_flight=places)
    outcome = simulation.outcome
    transfers = simulation.outcome.transfers
    moments = [
        outcome.send_s,
        transfers.prefilled_s,
        transfers.seen_s,
        transfers.begin_s,
        transfers.end_s,
        outcome.first_s,
    ]
    for row in zip(*moments, strict=True):
        assert list(row) == sorted(row)
        assert row[-1] - row[0] > (row[1] - row[0]) + (row[4] - row[3])  # prefill and transfer
    assert all(
        first_s <= last_s for first_s, last_s in zip(outcome.first_s, outcome.last_s, strict=True)
    )
    assert all(
        prefill < pods[0] <= pod
        for prefill, pod in zip(transfers.prefill_pod, outcome.pod, strict=True)
    )
    capacity = ENGINE.num_gpu_blocks - 1
    assert max(pool.max_blocks for pool in transfers.pools()) <= capacity
    assert [pod.blocks.free for pod in simulation.pods] == [capacity] * sum(pods)
    assert transfers.bytes <= 4 * sum(-(-tokens // 4) for tokens in load.input_tokens)


@settings(max_examples=25, deadline=None)
@given(REQUESTS)
def test_decode_pods_run_no_prefill_steps(requests: list[tuple[float, int, int]]) -> None:
    prefills = [0, 0]

    def watch(pod: Any, batch: Any, start_s: float, end_s: float) -> None:
        prefills[pod.number] += batch.prefills

    roomy = msgspec.structs.replace(
        REAL, engine=msgspec.structs.replace(ENGINE, num_gpu_blocks=4000)
    )
    simulated(load_of(requests), watch=watch, profile=roomy)
    assert prefills[0] >= len(requests) and prefills[1] == 0


Capture = pytest.CaptureFixture[str]


def test_disaggregated_simulation_prints_figures_of_each_pool(
    capsys: Capture,
) -> None:
    summary = figures(capsys, *SPLIT, "--transfer-latency", "20ms")
    disaggregation = summary["disaggregation"]
    requests = summary["requests"]
    assert [sum(disaggregation[name]["requests_per_pod"]) for name in ("prefill", "decode")] == [
        requests,
        requests,
    ]
    assert disaggregation["transferred_bytes"] == requests * 2000 * 163840
    assert disaggregation["transfer_s"]["p50"] >= 0.02 + 2000 * 163840 / 50e9
    assert summary["gpu_hours"] == pytest.approx(3 * summary["duration_s"] / 3600)
    assert run(SPLIT) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(
        "; 3 pods, least-requests, 2 of them prefill, 163.84 kB a token at 50 GB/s"
    )
    assert [line.split("|")[1].strip() for line in lines[7:10]] == [
        "prefill",
        "waiting",
        "transfer",
    ]
    assert [line.partition(":")[0] for line in lines[-3:]] == [
        "prefill pods",
        "decode pods",
        "transfers",
    ]
    assert datasheet_profile(SHAPE, "h100").kv_bytes_per_token == 2 * 2 * 8 * 128 * 36


def test_sweep_finds_the_best_ratio_of_prefill_to_decode_pods(capsys: Capture) -> None:
    argv = [*LOAD, "--pods", "4", "--sweep", "prefill-pods=1:3:1", "--processes", "1", "--slo"]
    sweep = figures(capsys, *argv, "itl_p99=14ms", "--goodput", "ttft:400", "tpot:14")
    good = [point["summary"]["goodput"]["good"] for point in sweep["points"]]
    assert good.index(max(good)) == sweep["best"] == 3
    assert ["disaggregation" in point["summary"] for point in sweep["points"]] == [
        False,
        True,
        True,
        True,
    ]
    assert run([*argv, "ttft_p50=1ms"]) == 0
    verdict, *table = capsys.readouterr().out.splitlines()
    rows = table[3 : table.index("")]  # a wide table is divided
    assert [line.split("|")[1].strip() for line in rows] == ["4 ordinary", "1:3", "2:2", "3:1"]
    assert verdict.startswith("Best P:D: none meets ttft_p50 <= 1 ms; nearest is 3:1, ttft_p50 at ")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([*LOAD, "--prefill-pods", "2"], "--prefill-pods and --decode-pods must be used together"),
        (
            [*SPLIT, "--pods", "3"],
            "--prefill-pods and --decode-pods define all pods and cannot be combined with",
        ),
        (
            [*LOAD, "--sweep", "prefill-pods=1:2:1", "--pods", "2"],
            "--sweep prefill-pods: --pods must exceed",
        ),
        (
            [*LOAD, "--transfer-bandwidth", "5GB"],
            "--transfer-bandwidth requires --prefill-pods and",
        ),
        (
            [*SPLIT, "--profile", "./old.yaml"],
            "profile ./old.yaml does not specify the size of keys and values",
        ),
    ],
)
def test_conflicting_disaggregation_flags_are_rejected(
    argv: list[str], message: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    old = {**msgspec.to_builtins(read_profile("qwen3-14b-h100")), "kv-bytes-per-token": None}
    Path("old.yaml").write_bytes(msgspec.json.encode(old))
    assert refusal(capsys, *argv).startswith(message)


@pytest.mark.parametrize("client", [[], ["--in-flight", "5"]])
def test_requests_that_preempt_each_other_forever_are_an_error(
    client: list[str], tmp_path: Path, capsys: Capture
) -> None:
    """As in vLLM up to 0.29, whose connector keeps the blocks of preempted requests for a step."""
    rows = [
        "arrival_s,input_tokens,output_tokens,class",
        *("0.048,135,51,a", "0.066,366,381,c", "0.109,535,315,a"),
        *("0.139,1210,353,a", "0.189,1327,206,c", "0.232,1062,195,c"),
        *("0.279,1048,142,a", "0.322,765,243,b", "0.368,887,274,a"),
    ]
    trace = tmp_path / "load.csv"
    trace.write_text("\n".join(rows))
    argv = [*client, "--prefill-pods", "1", "--decode-pods", "1", "--trace", str(trace)]
    argv += ["--priorities", "a=0", "b=1", "c=2", "--max-model-len", "2000"]
    argv += ["--num-gpu-blocks-override", "130", "--vllm-version"]
    assert run([*argv, "0.28"]) == 1
    assert "requests never end: they preempt each other" in capsys.readouterr().err
    assert run([*argv, "0.33"]) == 0
