"""A simulation in frames tells what became of the load, and the page of it stands alone."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.core.engine.batch import Phase
from app.core.engine.profile import read_profile
from app.extensions.console.page import report_of
from tests.extensions.console.watched import Page
from workbench.load.loads import LoadTrace
from workbench.load.synthetic import Between, Recipe, draw_load
from workbench.runs import step_recorder
from workbench.runs.disaggregation import Disaggregation
from workbench.runs.film import Film
from workbench.runs.simulate import run
from workbench.runs.simulation import SimulationOutcome, SimulationPlan, simulate

TOLD = "a <b>title</b></script><script>alert(1)</script>"


def filmed(pods: int = 1, **engine: Any) -> tuple[LoadTrace, SimulationOutcome, Film, Page]:
    profile = read_profile("qwen3-14b-h100")
    profile = msgspec.structs.replace(
        profile, engine=msgspec.structs.replace(profile.engine, **engine)
    )
    plan = SimulationPlan(profile=profile, pods=pods)
    sizes = {"input_tokens": Between(50, 900), "output_tokens": Between(1, 120)}
    load = draw_load(Recipe(**sizes, rate=10.0, arrivals="poisson", seconds=8.0, seed=4), 40_960)
    film = Film(load, plan, TOLD)
    outcome = simulate(load, plan, watch=film.watch)
    page = Page()
    page.take(film.picture(outcome))
    for frame in film.frames(outcome):
        page.take(frame)
    return load, outcome, film, page


@pytest.mark.parametrize("pods", [1, 3])
def test_replay_frames_have_the_times_of_every_request(pods: int) -> None:
    load, outcome, film, page = filmed(pods)
    begin_s = min(outcome.send_s)
    figures = page.figures
    assert len(page.bars) == len(page.ended) == len(load)
    for number, row in page.ended.items():
        place = number - 1
        assert row[3] == load.output_tokens[place]
        running_ms, first_ms, last_ms = row[5:]
        assert first_ms == pytest.approx((outcome.first_s[place] - begin_s) * 1000, abs=0.1)
        assert last_ms == pytest.approx((outcome.last_s[place] - begin_s) * 1000, abs=0.1)
        assert page.bars[number][5] - 0.1 <= running_ms <= first_ms
        assert page.phases[number] == [Phase.PREFILL, Phase.DECODE]
    assert (figures["generated"], figures["prompt"]) == (
        sum(load.output_tokens),
        sum(load.input_tokens),
    )
    assert (figures["length"], figures["running"], figures["waiting"]) == (len(load), 0, 0)
    assert len(page.ttft) == len(load) and len(page.steps) == outcome.steps
    assert sum(row[2] for row in page.steps) == sum(load.input_tokens)
    unwatched = simulate(load, outcome.plan)  # to watch changes nothing
    assert (unwatched.first_s, unwatched.last_s, unwatched.pod) == (
        outcome.first_s,
        outcome.last_s,
        outcome.pod,
    )


@pytest.mark.parametrize("pods", [1, 3])
def test_replay_frames_contain_every_gap_between_tokens(pods: int) -> None:
    load, outcome, _, page = filmed(pods)
    assert len(page.itl) == sum(load.output_tokens) - len(load) == outcome.gaps.count
    [p50_s, p99_s] = outcome.gaps.quantiles_s([0.5, 0.99])
    gaps = sorted(page.itl)
    assert gaps[int(0.5 * len(gaps))] == pytest.approx(1000 * p50_s, abs=0.1)
    assert gaps[int(0.99 * len(gaps))] == pytest.approx(1000 * p99_s, abs=0.1)


def test_replay_of_a_fleet_shows_the_requests_and_blocks_of_each_pod() -> None:
    profile = read_profile("qwen3-14b-h100")
    plan = SimulationPlan(profile=profile, pods=3, policy="prefix-aware")
    sizes = {"input_tokens": Between(50, 90), "output_tokens": Between(20, 60), "prefix_groups": 5}
    load = draw_load(Recipe(**sizes, prefix_tokens=1600, rate=40.0, seconds=8.0), 40_960)
    film = Film(load, plan, TOLD)
    page = Page()
    capacity = 3 * (profile.engine.num_gpu_blocks - 1)
    outcome = simulate(load, plan, watch=film.watch)
    frames = list(film.frames(outcome))
    for frame in frames:
        page.take(frame)
        running, waiting, used = (sum(column) for column in list(zip(*frame.pods, strict=True))[:3])
        assert (running, waiting) == (page.figures["running"], page.figures["waiting"])
        assert used / 3 == pytest.approx(page.figures["cache_usage"], abs=1e-4)
        assert (
            page.figures["cache_usage"] * capacity < 100 * 5 * 3 + running * 10
        )  # prefixes, and the rest
    assert {row[5] for row in page.steps} == {0, 1, 2} and len(page.steps) == outcome.steps
    assert page.figures["hits"] == page.figures["cached"] == outcome.cached_tokens > 0
    assert page.figures["queries"] == sum(load.input_tokens)
    assert sum(row[4] for row in page.ended.values()) == outcome.cached_tokens
    assert film.picture(outcome).began is None


def test_replay_shows_prefills_and_decodes_on_separate_pods() -> None:
    profile = read_profile("qwen3-14b-h100")
    split = Disaggregation(prefill_pods=1, decode_pods=2, bytes_per_token=1e5, bandwidth=1e10)
    plan = SimulationPlan(profile=profile, pods=3, disaggregation=split)
    load = draw_load(Recipe(rate=10.0, seconds=5.0), 40_960)
    film = Film(load, plan, TOLD)
    page = Page()
    for frame in film.frames(simulate(load, plan, watch=film.watch)):
        page.take(frame)
    assert {tuple(phases) for phases in page.phases.values()} == {
        (Phase.PREFILL, Phase.TRANSFER, Phase.DECODE)
    }
    prefilled = [sum(row[2] for row in page.steps if row[5] == pod) for pod in range(3)]
    assert prefilled[0] == sum(load.input_tokens) and max(prefilled[1:]) <= len(load)
    assert len(page.ended) == len(load) and (page.figures["running"], page.figures["waiting"]) == (
        0,
        0,
    )


def test_replay_shows_how_pods_of_an_autoscaled_fleet_become_ready(tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    load = ["--rate", "30", "--arrivals", "ramp", "--seconds", "60", "--policy", "least-requests"]
    scaled = ["--autoscale", "hpa:metric=running,target=5,min=1,max=3", "--cold-start", "20s"]
    assert run([*load, *scaled, "--html", str(page)]) == 0
    recording = page.read_text("utf-8").partition('id="recording">')[2].partition("</script>")[0]
    frames = [json.loads(line)["pods"] for line in recording.splitlines()[1:]]
    states = [[pods[number][4].strip(" ()") for pods in frames] for number in range(3)]
    assert [list(dict.fromkeys(pod_states)) for pod_states in states] == [
        ["ready"],
        *[["not there yet", "loading", "ready"]] * 2,
    ]


def test_note_in_a_large_replay_states_how_many_requests_are_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_recorder, "MAX_BARS", 50)
    monkeypatch.setattr(step_recorder, "MAX_STEPS", 100)
    load, outcome, film, page = filmed(num_gpu_blocks=100, max_num_seqs=64, max_model_len=1100)
    assert len(page.bars) <= 50 and len(page.steps) <= 101
    assert page.figures["length"] == len(load)
    assert page.figures["preemptions"] == outcome.preemptions > 0
    note = str(film.picture(outcome).server["told"])
    assert "one request in 2 has a bar" in note and "one step in 32 is shown" in note


def test_replay_page_is_self_contained_and_escapes_script_tags(tmp_path: Path) -> None:
    _, outcome, film, _ = filmed()
    html = report_of(film.picture(outcome), film.frames(outcome))
    recording = re.search(
        r'<script type="application/json" id="recording">(.*?)\n', html, re.DOTALL
    )
    assert recording and json.loads(recording[1])["server"]["model"] == TOLD
    assert not re.search(r'<script[^>]*src=|<link rel="stylesheet"|alert\(1\)</script>', html)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None and "unsafe" not in policy[1] and "connect-src" not in policy[1]
    page = tmp_path / "run.html"
    assert run(["--rate", "5", "--seconds", "5", "--html", str(page)]) == 0
    assert page.read_text("utf-8").startswith("<!doctype html>")
