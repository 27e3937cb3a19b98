"""The figures that Chromium shows are those of the engine's own moments:

at the end, and looking back.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import requests

from app.core.engine.outputs import Tokens
from app.extensions.console.page import report_of
from app.shared.statistics import quantile
from tests.core.engine.harness import START_S
from tests.extensions.console.watched import WatchedEngine
from tests.extensions.console.wire.console_page import wait_for_match, wait_for_state
from tests.running_server import running_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]
LENGTH_S = 40.0
FRAME_S = 0.25
SERVER = {
    "model": "test", "places": 4, "shared_steps": False, "budget": 0, "blocks": 0, "numbered": False,
    "block_size": 16, "adapter_slots": 0, "publishes": False, "ranks": {},
}  # fmt: skip
DRAWN = {"time_to_first_token_std_dev": 0.2, "inter_token_latency_std_dev": 0.01}
LATENCY = {"time_to_first_token": 0.3, "inter_token_latency": 0.02}
LOADS: dict[str, dict[str, Any]] = {
    "constant": {"slots": 60, **LATENCY},
    "drawn": {"slots": 60, **LATENCY, **DRAWN},
    "saturated": {"slots": 4, "max_waiting": 1000, **LATENCY, **DRAWN},
}


def played(load: str) -> tuple[WatchedEngine, str]:
    """A load on a virtual clock, and the page of it; when it ends, the saturated one is far from
    done.
    """
    watched = WatchedEngine(**LOADS[load])
    rng = Random(7)
    picture = watched.observer.picture(SERVER)
    frames = []
    for turn in range(int(LENGTH_S / FRAME_S)):
        moments = sorted(
            rng.uniform(0, FRAME_S) for _ in range(rng.randrange(4) if turn < 120 else 0)
        )
        for since, moment in zip([0.0, *moments], [*moments, FRAME_S], strict=True):
            watched.harness.clock.advance(moment - since)
            if moment != FRAME_S:
                watched.ask(
                    f"r{len(watched.harness.events)}-{moment}", max_tokens=rng.randrange(2, 60)
                )
        frames.append(watched.observer.frame())
        watched.page.take(frames[-1])
    return watched, report_of(picture, frames)


def moments_of(watched: WatchedEngine, until_s: float) -> tuple[list[float], list[float], int]:
    """TTFT and gaps in milliseconds, of what the engine had emitted then, and how many still
    waited.
    """
    token_s: dict[str, list[float]] = {name: [] for name in arrivals_s(watched)}
    for name, event in watched.harness.events:
        if isinstance(event, Tokens):
            token_s[name] += [event.at_s] * len(event.ids)
    ttft = []
    gaps = []
    waiting = 0
    for name, arrival_s in arrivals_s(watched).items():
        if arrival_s > until_s:
            continue
        seen_s = token_s[name][: bisect_right(token_s[name], until_s)]
        waiting += not seen_s
        ttft.append((seen_s[0] if seen_s else until_s) - arrival_s)
        gaps += [later - earlier for earlier, later in zip(seen_s, seen_s[1:], strict=False)]
    return (
        sorted(seconds * 1000 for seconds in ttft),
        sorted(seconds * 1000 for seconds in gaps),
        waiting,
    )


def ended_after(watched: WatchedEngine, until_s: float) -> list[float]:
    """Milliseconds from the arrival to the last token, of requests that had ended."""
    arrived_s = arrivals_s(watched)
    took_s = [
        event.at_s - arrived_s[name]
        for name, event in watched.harness.events
        if isinstance(event, Tokens) and event.finish is not None and event.at_s <= until_s
    ]
    return sorted(seconds * 1000 for seconds in took_s)


def arrivals_s(watched: WatchedEngine) -> dict[str, float]:
    return {row[1]: START_S + row[5] / 1000 for row in watched.page.bars.values()}


def shown(page: Page, name: str) -> dict[str, float]:
    """The figures of a line, in milliseconds and per cent."""
    line = page.inner_text(f"#{name}-line")
    quantiles_ms = {
        key: float(value) * (1000 if unit == "s" else 1)
        for key, value, unit in re.findall(r"(p\d\d) ([\d.]+) (s|ms)", line)
    }
    share = re.search(r"([\d.]+) % of ([\d,]+) within", line)
    assert share, line
    waits = re.search(r"([\d,]+) still waiting", line)
    counts = {
        "count": float(share[2].replace(",", "")),
        "waiting": float(waits[1]) if waits else 0.0,
    }
    return {**quantiles_ms, "within": float(share[1]), **counts}


def figures_of(values: list[float], limit: float, waiting: int = 0) -> dict[str, float]:
    return {
        **{f"p{share * 100:.0f}": quantile(values, share) for share in (0.5, 0.9, 0.99)},
        "within": 100 * sum(value <= limit for value in values) / len(values),
        "count": len(values),
        "waiting": waiting,
    }


@pytest.mark.parametrize("load", LOADS)
def test_saved_console_page_shows_the_latencies_of_the_engine(
    browser: Browser, tmp_path: Path, load: str
) -> None:
    watched, html = played(load)
    file = tmp_path / "run.html"
    file.write_text(html)
    page = browser.new_page()
    page.goto(file.as_uri())
    for until_s in (LENGTH_S, 12.5):
        page.evaluate(f"stop({until_s * 1000}); render()")
        ttft, gaps, waiting = moments_of(watched, START_S + until_s)
        assert bool(waiting) == (load == "saturated") or until_s < LENGTH_S
        for name, expected in (
            ("ttft", figures_of(ttft, 500, waiting)),
            ("itl", figures_of(gaps, 50)),
            ("e2e", figures_of(ended_after(watched, START_S + until_s), 5000)),
        ):
            shown_figures = shown(page, name)
            for key, value in expected.items():
                assert shown_figures[key] == pytest.approx(value, rel=0.01, abs=0.5), (
                    name,
                    key,
                    until_s,
                )
    page.close()


def test_live_page_shows_the_time_to_first_token_that_the_server_reports(browser: Browser) -> None:
    """Drawn latencies and more requests than places: those that wait do so for seconds."""
    flags = (
        "--time-to-first-token=300ms",
        "--time-to-first-token-std-dev=60ms",
        "--max-num-seqs=4",
    )
    names = [f"live-{number}" for number in range(30)]
    with running_server("--console", *flags) as server, ThreadPoolExecutor(len(names)) as pool:
        page = browser.new_page()
        page.goto(f"{server.url}/console")
        wait_for_state(page, "serving")

        def ask(name: str) -> float:
            body = {"prompt": "Hello", "max_tokens": 3}
            url = f"{server.url}/v1/completions"
            headers = {"X-Request-Id": name}
            assert requests.post(url, json=body, headers=headers, timeout=30).status_code == 200
            explanation = requests.get(f"{server.url}/admin/requests/{name}", timeout=30).json()
            phases = {phase["phase"]: phase for phase in explanation["choices"][0]["phases"]}
            return float(
                phases["decode"]["from_ms"] if "decode" in phases else phases["prefill"]["to_ms"]
            )

        ttft = sorted(pool.map(ask, names))
        wait_for_match(page, "#ttft-line", rf"of {len(names)} within 500 ms \(99 % wanted\)$")
        for key, value in figures_of(ttft, 500).items():
            assert shown(page, "ttft")[key] == pytest.approx(value, rel=0.01, abs=0.5), key
        page.close()
