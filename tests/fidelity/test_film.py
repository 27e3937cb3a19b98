"""A simulation in frames tells what became of the load, and the page of it stands alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.console.page import report_of
from app.engine.core.batch import Phase
from app.lab.fidelity import film as films
from app.lab.fidelity.film import Film
from app.lab.fidelity.simulate import run
from app.lab.fidelity.simulation import SimulationOutcome, SimulationPlan, simulate
from app.lab.load.loads import Between, LoadTrace, Recipe, draw_load
from config.datasheet import profile_of
from tests.console.watched import Page

TOLD = "a <b>title</b></script><script>alert(1)</script>"


def filmed(pods: int = 1, **engine: Any) -> tuple[LoadTrace, SimulationOutcome, Film, Page]:
    profile = profile_of("qwen3-14b-h100", None, 1, None)
    profile = msgspec.structs.replace(profile, engine=msgspec.structs.replace(profile.engine, **engine))
    plan = SimulationPlan(profile=profile, pods=pods)
    sizes = {"input_tokens": Between(50, 900), "output_tokens": Between(1, 120)}
    load = draw_load(Recipe(**sizes, rate=10.0, arrivals="poisson", seconds=8.0, seed=4), 40_960)
    film = Film(load, plan, TOLD)
    outcome = simulate(load, plan, watch=film.watch)
    page = Page()
    page.take(film.picture())
    for frame in film.frames(outcome):
        page.take(frame)
    return load, outcome, film, page


@pytest.mark.parametrize("pods", [1, 3])
def test_every_request_comes_runs_and_ends_when_it_did(pods: int) -> None:
    load, outcome, film, page = filmed(pods)
    begin_s, figures = min(outcome.send_s), page.figures
    assert len(page.bars) == len(page.ended) == len(load)
    for number, row in page.ended.items():
        place = number - 1
        assert row[3] == load.output_tokens[place]
        running_ms, first_ms, last_ms = row[5:]
        assert first_ms == pytest.approx((outcome.first_s[place] - begin_s) * 1000, abs=0.1)
        assert last_ms == pytest.approx((outcome.last_s[place] - begin_s) * 1000, abs=0.1)
        assert page.bars[number][5] - 0.1 <= running_ms <= first_ms
        assert page.phases[number] == [Phase.PREFILL, Phase.DECODE]
    assert (figures["generated"], figures["prompt"]) == (sum(load.output_tokens), sum(load.input_tokens))
    assert (figures["length"], figures["running"], figures["waiting"]) == (len(load), 0, 0)
    assert sum(page.frame["ttft"]) == len(load) and len(page.steps) == outcome.steps
    assert sum(row[2] for row in page.steps) == sum(load.input_tokens)
    again = simulate(load, film._plan)  # to watch changes nothing
    assert (again.first_s, again.last_s, again.pod) == (outcome.first_s, outcome.last_s, outcome.pod)


def test_large_ones_are_thinned_out_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(films, "MOST_BARS", 50)
    monkeypatch.setattr(films, "MOST_STEPS", 100)
    load, outcome, film, page = filmed(num_gpu_blocks=100, max_num_seqs=64, max_model_len=1100)
    assert len(page.bars) <= 50 and len(page.steps) <= 101
    assert page.figures["length"] == len(load)
    assert page.figures["preemptions"] == outcome.preemptions > 0
    assert "has a bar" in film.picture().server["told"] and "step is shown" in film.picture().server["told"]


def test_the_page_stands_alone_and_no_text_ends_its_script(tmp_path: Path) -> None:
    _, outcome, film, _ = filmed()
    html = report_of(film.picture(), film.frames(outcome))
    recording = re.search(r'<script type="application/json" id="recording">(.*?)\n', html, re.DOTALL)
    assert recording and json.loads(recording[1])["server"]["model"] == TOLD
    assert not re.search(r'<script[^>]*src=|<link rel="stylesheet"|alert\(1\)</script>', html)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None and "unsafe" not in policy[1] and "connect-src" not in policy[1]
    page = tmp_path / "run.html"
    assert run(["--rate", "5", "--seconds", "5", "--html", str(page)]) == 0
    assert page.read_text("utf-8").startswith("<!doctype html>")
