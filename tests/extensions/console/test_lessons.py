"""Each lesson shows what its two sentences say."""

import re
from functools import cache
from typing import Any

import pytest

from app.core.engine.batch import Phase
from app.extensions.console.frames import FIGURES, Frame, Picture
from app.extensions.console.lesson_engine import ENGINE_BARS, PREFILL_ENGINE, LessonEngine
from app.extensions.console.lesson_terms import TERMS, terms_of
from app.extensions.console.lessons import LESSONS, LONG_ARRIVAL_S, LONG_PROMPT, find_lesson
from tests.application import app_of

NAMES = [lesson.name for lesson in LESSONS]
PREFILL_BARS = range(ENGINE_BARS, 2 * ENGINE_BARS)
"""Numbers of bars on the engine that only computes prompts."""


class PlayedLesson:
    """A lesson with its figures."""

    def __init__(self, name: str) -> None:
        lesson = find_lesson(name)
        assert lesson is not None
        self.lesson = lesson
        picture, *frames = LessonEngine(lesson).play()
        assert isinstance(picture, Picture)
        self.frames = [frame for frame in frames if isinstance(frame, Frame)]
        self.steps = [row for frame in self.frames for row in frame.steps]
        self.ends = {row[0]: row for frame in self.frames for row in frame.ended}
        self.server = picture.server

    def max_figure(self, name: str) -> float:
        return max(frame.figures[FIGURES.index(name)] for frame in self.frames)

    @property
    def gaps_ms(self) -> list[float]:
        gaps = list[float]()
        for frame in self.frames:
            for value, count in zip(frame.itl[::2], frame.itl[1::2], strict=True):
                gaps += [value / 10] * count
        return sorted(gaps)

    def prefill_ms(self, number: int) -> float:
        _, _, _, _, _, running_ms, first_ms, _ = self.ends[number]
        assert running_ms is not None and first_ms is not None
        return first_ms - running_ms

    def first_s(self, number: int) -> float:
        first_ms = self.ends[number][6]
        assert first_ms is not None
        return first_ms / 1000


@cache
def played(name: str) -> PlayedLesson:
    return PlayedLesson(name)


@pytest.mark.parametrize("name", NAMES)
def test_all_requests_of_a_lesson_complete_within_15_seconds(name: str) -> None:
    lesson = played(name)
    assert len(lesson.ends.keys() - PREFILL_BARS) == len(lesson.lesson.arrivals)
    assert {row[1] for row in lesson.ends.values()} == {"length"}
    assert 3 < lesson.frames[-1].at / 1000 < 15


def test_full_cache_makes_requests_wait_despite_free_slots() -> None:
    lesson = played("kv-cache-full")
    assert lesson.server["places"] == 32
    assert lesson.server["blocks"] == 819
    assert lesson.max_figure("running") == 8
    assert lesson.max_figure("waiting") > 30
    assert lesson.max_figure("cache_usage") > 0.99
    assert lesson.max_figure("preemptions") == 0


def test_preempted_stream_has_a_gap_of_seconds() -> None:
    lesson = played("preemption")
    assert lesson.server["blocks"] == 160
    assert lesson.max_figure("running") == 12
    assert lesson.max_figure("preemptions") >= 5
    assert lesson.gaps_ms[-1] > 2000
    first_prefill_tokens = 12 * 64
    assert sum(step[2] for step in lesson.steps) > first_prefill_tokens + 300, "computed again"


def test_chunked_prompt_leaves_room_for_the_streams_in_every_step() -> None:
    lesson = played("chunked-prefill")
    chunks = [step for step in lesson.steps if step[0] > LONG_ARRIVAL_S * 1000 and step[2]]
    assert len(chunks) == 24
    assert sum(step[2] for step in chunks) == LONG_PROMPT
    assert {step[3] for step in chunks} == {8}
    assert all(step[2] + step[3] <= 1024 for step in chunks)
    assert lesson.gaps_ms[-1] < 100


def test_prompts_with_a_cached_prefix_need_almost_no_prefill() -> None:
    lesson = played("prefix-hit")
    new_ms = [lesson.prefill_ms(number) for number in range(1, 7)]
    cached_ms = [lesson.prefill_ms(number) for number in range(7, 13)]
    assert max(cached_ms) < min(new_ms) / 5
    assert [lesson.ends[number][4] for number in range(7, 13)] == [5984] * 6
    assert [lesson.ends[number][4] for number in range(1, 7)] == [0] * 6


def test_long_prompt_stalls_all_streams_without_raising_the_p99_gap() -> None:
    lesson = played("long-prompt")
    gaps_ms = lesson.gaps_ms
    assert [gap > 1000 for gap in gaps_ms[-9:]] == [False] + [True] * 8
    assert gaps_ms[-1] == pytest.approx(1200, rel=0.1)
    assert gaps_ms[int(len(gaps_ms) * 0.99)] < 15


def test_streams_keep_their_pace_with_disaggregated_prefill() -> None:
    lesson = played("prefill-decode-apart")
    assert lesson.gaps_ms[-1] < 15
    later_steps = [step for step in lesson.steps if step[0] > LONG_ARRIVAL_S * 1000]
    prefill_steps = [step for step in later_steps if step[5:] == (PREFILL_ENGINE,)]
    decode_steps = [step for step in later_steps if not step[5:]]
    assert [step[2] for step in prefill_steps] == [LONG_PROMPT]
    assert sum(step[2] for step in decode_steps) == 1, "the last token of the prompt"
    later_s = lesson.first_s(9) - played("long-prompt").first_s(9)
    assert 0 < later_s < 0.5
    assert played("chunked-prefill").first_s(9) > played("long-prompt").first_s(9)


def test_decode_starts_after_the_prefill_on_the_prefill_engine_has_ended() -> None:
    lesson = played("prefill-decode-apart")
    arrivals_ms = {row[0]: row[5] for frame in lesson.frames for row in frame.new}
    [prefill_number] = lesson.ends.keys() & PREFILL_BARS
    prefill_end_ms = lesson.ends[prefill_number][2]
    assert arrivals_ms[prefill_number] == LONG_ARRIVAL_S * 1000
    assert arrivals_ms[9] == LONG_ARRIVAL_S * 1000, "of the client's request"
    scheduled_ms = lesson.ends[9][5]
    assert scheduled_ms is not None and scheduled_ms > prefill_end_ms
    assert lesson.server["engines"] == ["Engine B: decode", "Engine A: prefill"]


@pytest.mark.parametrize("name", ["chunked-prefill", "long-prompt"])
def test_running_request_is_in_the_prefill_phase_until_its_first_token(name: str) -> None:
    lesson = played(name)
    phases = [row[1:3] for frame in lesson.frames for row in frame.phases if row[0] == 9]
    assert [phase for phase, _ in phases] == [Phase.PREFILL, Phase.DECODE]
    assert phases[-1][1] == lesson.ends[9][6]


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("kv-cache-full", ["8 of 32 slots", "56", "99.6 %"]),
        ("preemption", ["8", "1,762", "2.99 s"]),
        ("chunked-prefill", ["24", "63.5 ms", "1.34 s"]),
        ("prefix-hit", ["291 ms", "43.3 ms", "35,904"]),
        ("long-prompt", ["1.22 s", "12.9 ms", "1.26 s"]),
        ("prefill-decode-apart", ["13.1 ms", "252 ms", "1.52 s"]),
    ],
)
def test_lesson_figures_have_the_values_that_the_lesson_text_explains(
    name: str, figures: list[str]
) -> None:
    lesson = played(name)
    assert lesson.server["figures"] == list(zip(lesson.lesson.figures, figures, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_glossary_of_a_lesson_contains_every_term_of_its_text(name: str) -> None:
    lesson = find_lesson(name)
    assert lesson is not None
    words = lesson.text.replace(",", "").split()
    expected = {term for term in TERMS if " " not in term and {term, f"{term}s"} & set(words)}
    assert expected <= terms_of(lesson.text).keys()


def test_plural_of_a_glossary_term_has_the_definition_of_that_term() -> None:
    assert terms_of("Three prefix hits") == {"prefix hit": TERMS["prefix hit"]}
    assert terms_of("The prefix of a stepladder") == {}


def client(*flags: str) -> Any:
    return app_of("--console", "--force-dummy-tokenizer", *flags).test_client()


def test_default_server_lists_and_plays_six_lessons() -> None:
    http_client = client()
    lessons = http_client.get("/admin/console/lessons").get_json()
    assert [lesson["name"] for lesson in lessons] == NAMES
    assert len(NAMES) == 6
    for lesson in lessons:
        assert len(re.findall(r"\.(?: |$)", lesson["text"])) == 2, "two sentences"
    picture, *frames = http_client.get("/admin/console/lessons/preemption").get_json()
    assert picture["version"] == 2
    assert frames[-1]["at"] > 3000


def test_lesson_routes_require_a_known_name_and_the_admin_key() -> None:
    assert client().get("/admin/console/lessons/other").status_code == 404
    keyed = client("--admin-key", "secret")
    for path in ("lessons", "lessons/preemption"):
        assert keyed.get(f"/admin/console/{path}").status_code == 401
