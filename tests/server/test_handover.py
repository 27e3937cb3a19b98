"""A worker has exactly the settings that the arbiter has read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.serving.gunicorn.handover import SETTINGS, hand_over, handed_over
from config import Settings
from config.loader import load
from config.settings import ReplySettings, SchedulingSettings, ServerSettings, TlsSettings

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"))


def passed_on(settings: Settings) -> Settings | None:
    environ: dict[str, str] = {}
    hand_over(settings, environ)
    return handed_over(environ)


def test_what_every_kind_of_source_says_is_passed_on() -> None:
    flags = ["--served-model-name", "a", "b,c", "--time-to-first-token", "1.5s", "--no-access-log"]
    settings = load(flags, {"SIM_SEED": "4", "POD_NAME": "pod", "SIM_TOOL_CALL_PROBABILITY": "7"})
    assert passed_on(settings) == settings


@given(
    pod=TEXT,
    names=st.lists(st.from_regex(r"[a-z0-9.-]{1,20}", fullmatch=True)),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    limit=st.none() | st.integers(0, 10**6),
    patience_ns=st.integers(0, 10**13),
)
def test_any_value_is_passed_on(
    pod: str, names: list[str], seed: int | None, limit: int | None, patience_ns: int
) -> None:
    settings = Settings(
        server=ServerSettings(pod_name=pod, graceful_timeout=patience_ns / 10**9),
        tls=TlsSettings(self_signed_names=tuple(names)),
        reply=ReplySettings(seed=seed),
        scheduling=SchedulingSettings(max_num_queued_reqs=limit),
    )
    assert passed_on(settings) == settings


def test_the_sources_are_not_asked_again() -> None:
    environ = {"SIM_PORT": "9000"}
    assert handed_over(environ) is None
    hand_over(replace(Settings(), server=ServerSettings(port=8005)), environ)
    taken = handed_over(environ)
    assert taken is not None and taken.server.port == 8005
    assert set(environ) == {"SIM_PORT", SETTINGS}
