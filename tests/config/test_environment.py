"""Settings that are handed to another process through its environment arrive unchanged."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.flags import parse
from config.loader import load, resolve
from config.settings import BY_NAME
from config.sources import as_environment


def handed_over(argv: list[str], environ: dict[str, str] | None = None) -> dict[str, str]:
    """The environment of the other process."""
    environ = environ or {}
    flags = parse(argv)
    return environ | as_environment(flags, resolve(flags, environ, lambda text: None), environ)


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--port", "9", "--access-log", "--no-enable-request-id-headers"],
        ["--served-model-name", "a", "b"],
        ["--served-model-name", "a,b", "c"],
        ["--served-model-name", "[x]"],
        ["--served-model-name"],
        ["--inter-token-latency", "1500us", "--time-factor-under-load", "1.1"],
        ["--latency-calculator", "", "--seed="],
        ["--chat-template", "{{ 'a\n' }}", "--hf-token", "hf_x"],
        ["-v", "5"],
    ],
)
def test_flags_become_variables_that_mean_the_same(argv: list[str]) -> None:
    assert load((), handed_over(argv)) == load(argv, {})


def test_flags_stay_stronger_than_variables_and_yaml(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("latency-calculator: constant\nserved-model-name: [a]\npod-name: y\nport: 7")
    environ = {"SIM_CONFIG": str(file), "POD_NAME": "x", "SIM_PORT": "1", "SIM_SEED": "1"}
    argv = ["--pod-name", "z", "--port", "2", "--seed=", "--latency-calculator=", "--served-model-name"]
    assert load((), handed_over(argv, environ)) == load(argv, environ)


def test_another_name_in_the_environment_does_not_contradict_a_flag() -> None:
    argv, environ = ["--kv-cache-size", "9"], {"SIM_NUM_BLOCKS": "8"}
    assert load((), handed_over(argv, environ)) == load(argv, environ)


def test_relative_paths_that_exist_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokenizer.json").touch()
    (tmp_path / "settings.yaml").write_text("chat-template: template.jinja")
    (tmp_path / "template.jinja").touch()
    variables = handed_over(["--config", "settings.yaml"], {"SIM_TOKENIZER": "tokenizer.json"})
    assert variables == {
        "SIM_CONFIG": str(tmp_path / "settings.yaml"),
        "SIM_TOKENIZER": str(tmp_path / "tokenizer.json"),
        "SIM_CHAT_TEMPLATE": str(tmp_path / "template.jinja"),
    }


def test_names_that_are_no_paths_stay_as_they_are() -> None:
    assert handed_over(["--tokenizer", "org/model"])["SIM_TOKENIZER"] == "org/model"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("allowed-headers", st.lists(st.text()).map(tuple)),
        ("access-log", st.booleans()),
        ("max-tool-call-integer-param", st.integers(-(2**63), 2**63 - 1)),
        ("max-tool-call-number-param", st.floats(allow_nan=False, allow_infinity=False)),
        ("seed", st.none() | st.integers(-(2**63), 2**63 - 1)),
    ],
)
def test_what_a_setting_writes_it_reads(name: str, values: st.SearchStrategy[Any]) -> None:
    row = BY_NAME[name]

    @given(values)
    def round_trip(value: Any) -> None:
        assert row.read(row.write(value)) == value

    round_trip()


def test_relative_paths_of_a_list_become_absolute_behind_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "replies.sqlite3").touch()
    monkeypatch.chdir(tmp_path)
    flags = parse(["--dataset-path", "replies.sqlite3", "m=replies.sqlite3", "o=nowhere.sqlite3"])
    settings = resolve(flags, {}, lambda text: None)
    absolute = str(tmp_path / "replies.sqlite3")
    handed = as_environment(flags, settings, {})["SIM_DATASET_PATH"]
    assert handed == f"{absolute},m={absolute},o=nowhere.sqlite3"


def test_tokenizers_of_the_index_are_found_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    flags = parse(["--kv-index-tokenizers", "m=./mine", "o=org/on-the-hub"])
    settings = resolve(flags, {}, lambda text: None)
    handed = as_environment(flags, settings, {})["SIM_KV_INDEX_TOKENIZERS"]
    assert handed == f"m={tmp_path / 'mine'},o=org/on-the-hub"
