"""Ranks: their addresses, the rank of a process, and the settings that the arbiter exports."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.core.server.gunicorn import ranks
from app.core.server.gunicorn.ranks import export_settings, exported_settings
from config import Settings
from config.settings import AccessSettings, ReplySettings, SchedulingSettings, ServerSettings

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
FOUR = ServerSettings(port=8000, data_parallel_size=4)
ALONE = replace(FOUR, data_parallel_rank=3)


def test_ranks_have_consecutive_ports() -> None:
    ports = range(8000, 8004)
    assert ranks.addresses(replace(FOUR, host="10.0.0.1")) == [f"10.0.0.1:{port}" for port in ports]
    assert ranks.addresses(ServerSettings(host="::1")) == ["[::1]:8000"]
    assert ranks.settings_of_rank(FOUR, 2).port == 8002
    assert (len(ALONE.ranks), ranks.addresses(ALONE)) == (1, ["0.0.0.0:8000"])
    assert ranks.settings_of_rank(ALONE, 3).port == 8000


def test_data_parallel_rank_setting_takes_precedence_over_the_environment() -> None:
    cases = [(FOUR, {}, 0), (FOUR, {ranks.RANK: "2"}, 2), (ALONE, {}, 3)]
    for server, environ, rank in (*cases, (replace(FOUR, data_parallel_rank=-1), {}, 0)):
        assert ranks.rank_of(server, environ) == rank


def round_trip(settings: Settings) -> Settings | None:
    environ: dict[str, str] = {}
    export_settings(settings, environ)
    return exported_settings(environ, Settings)


@settings(max_examples=15)
@given(
    pod=TEXT,
    names=st.lists(st.from_regex(r"[a-z0-9.-]{1,20}", fullmatch=True)),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    limit=st.none() | st.integers(0, 10**6),
    patience_ns=st.integers(0, 10**13),
)
def test_settings_exported_as_environment_variables_are_loaded_unchanged(
    pod: str, names: list[str], seed: int | None, limit: int | None, patience_ns: int
) -> None:
    settings = Settings(
        server=ServerSettings(pod_name=pod, graceful_timeout=patience_ns / 10**9),
        access=AccessSettings(allowed_hosts=tuple(names)),
        reply=ReplySettings(seed=seed),
        scheduling=SchedulingSettings(max_num_queued_reqs=limit),
    )
    assert round_trip(settings) == settings
