"""The catalogue and the configurations of the oracle are well-formed; no vLLM is started."""

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from app.extensions.recording.comparison import ReceivedAnswer
from fidelity.oracle import answers
from fidelity.oracle.cases import REMOVED, Area, Case
from fidelity.oracle.catalogue import CATALOGUE, cases_of
from fidelity.oracle.configurations import CONFIGURATIONS, ROOT, STORE, STORE_NAME
from fidelity.oracle.model import write_adapter, write_model, write_safetensors
from fidelity.oracle.options import Option, option_differences, options_in
from fidelity.oracle.servers import arguments, simulated_version_of
from vllm_facts.version import PATCHES

METHODS = {"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"}
_KEPT_VALUE = re.compile(r"\$\{(\w+)\}")


def test_names_of_oracle_cases_are_unique() -> None:
    counts = Counter(case.name for case in CATALOGUE)
    assert [name for name, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_every_oracle_configuration_has_cases_and_a_reason(configuration: str) -> None:
    assert CONFIGURATIONS[configuration].reason
    assert any(case.configuration == configuration for case in CATALOGUE)


def test_every_oracle_case_is_a_valid_request_with_a_reason() -> None:
    for case in CATALOGUE:
        assert case.reason.endswith("."), case.name
        assert case.configuration in CONFIGURATIONS, case.name
        assert case.method in METHODS, case.name
        assert case.path.startswith("/"), case.name
        assert case.name.startswith(f"{case.area}: "), case.name
        for word in case.words:
            re.compile(word)
        if not isinstance(case.body, bytes):
            json.dumps(case.body)


def test_each_value_that_an_oracle_case_uses_is_stored_by_an_earlier_case() -> None:
    stored: set[tuple[str, str]] = set()
    for case in CATALOGUE:
        for name in _KEPT_VALUE.findall(f"{case.path} {json.dumps(case.body, default=str)}"):
            assert (case.configuration, name) in stored, case.name
        stored.update((case.configuration, name) for name in case.keep)


def test_oracle_area_adds_its_default_fields_to_each_request_with_a_body() -> None:
    area = Area("a", path="/p", fields={"model": "m", "n": 1})
    area.case("more", "A reason.", {"n": 2, "model": REMOVED})
    area.each("n", "A reason.", [REMOVED, 3])
    area.get("/g", "A reason.")
    first_case, absent, three, get = area.cases
    assert first_case.body == {"n": 2}
    assert (absent.name, absent.body) == ("a: n absent", {"model": "m"})
    assert (three.name, three.body) == ("a: n 3", {"model": "m", "n": 3})
    expected = Case(name="a: GET /g", area="a", reason="A reason.", method="GET", path="/g")
    assert get == expected


HELP = """usage: x

  --b, --no-b
                As --c does.

                Twice. (default:
                False)
  -m {auto,new}, --mode {auto,new}
                (default: auto)
  --show        As --mode {x} does.
  --kind {a}
                See (default: x). (default: Kind(a=1, b=2))
"""


def test_options_are_parsed_from_the_help_output() -> None:
    switch = Option(frozenset(), "False")
    assert options_in(HELP) == {
        "--b": switch,
        "--no-b": switch,
        "--mode": Option(frozenset(("auto", "new")), "auto"),
        "--show": Option(frozenset(), ""),
        "--kind": Option(frozenset("a"), "Kind(a=1, b=2)"),
    }


def test_options_that_differ_between_versions_are_listed() -> None:
    second = HELP.replace("  --b, --no-b", "  --disable-b").replace("--show", "--hide")
    second = second.replace("{auto,new}", "{auto,newer}").replace("default: auto", "default: newer")
    second = second.replace("--kind {a}", "--kind KIND").replace("(a=1, b=2)", "(a=1, b=3, c=4)")
    assert list(option_differences(HELP, second, ("1", "2"))) == [
        "options that only 1 has: --show",
        "values of --kind that only 1 lists: all",
        "values of --mode that only 1 has: new",
        "options that only 2 has: --hide",
        "values of --mode that only 2 has: newer",
        "default of --kind: b=2) in 1, b=3, c=4) in 2",
        "default of --mode: auto in 1, newer in 2",
    ]


def test_unknown_vllm_version_is_judged_as_the_nearest_simulated_version() -> None:
    assert simulated_version_of("0.32.0") == "0.32"
    oldest, *_, newest = PATCHES
    assert simulated_version_of("0.999.1") == newest
    assert simulated_version_of("0.9.2") == oldest


def test_command_line_of_an_older_release_lacks_its_missing_options() -> None:
    base = CONFIGURATIONS["base"]
    older = arguments("0.29.0", base, port=1)
    newer = arguments("0.30.0", base, port=1)
    assert "--enable-scale-out" not in older
    assert [word for word in newer if word != "--enable-scale-out"] == older
    lora = arguments("0.6.6", CONFIGURATIONS["lora"], port=1)
    assert lora[-2:] == ["--scheduling-policy", "priority"]


def test_generated_models_are_reproducible(tmp_path: Path) -> None:
    for folder in ("first", "second"):
        write_model(tmp_path / folder)
        write_adapter(tmp_path / folder / "adapter")
    first = tmp_path / "first"
    names = sorted(path.relative_to(first) for path in first.rglob("*") if path.is_file())
    assert len(names) == 7
    for name in names:
        assert (first / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


def test_safetensors_header_contains_the_shape_of_each_tensor(
    tmp_path: Path,
) -> None:
    path = tmp_path / "weights"
    write_safetensors(path, {"a": (2, 3), "b.norm": (2,)})
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert header["a"] == {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    assert header["b.norm"]["data_offsets"] == [24, 32]
    assert len(content) == 8 + length + 32


def test_generated_oracle_files_are_not_committed() -> None:
    ignored = (ROOT / ".gitignore").read_text("utf-8").splitlines()
    assert f"{STORE_NAME}/" in ignored


def test_oracle_case_digest_does_not_depend_on_the_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = cases_of("lora", "0.32.0")[0]
    digest = answers.digest_of(case)
    lora = CONFIGURATIONS["lora"]
    elsewhere = Path("/elsewhere/shared-store")
    flags = [flag.replace(str(STORE), str(elsewhere)) for flag in lora.flags]
    assert flags != list(lora.flags)
    monkeypatch.setattr(answers, "STORE", elsewhere)
    monkeypatch.setitem(CONFIGURATIONS, "lora", replace(lora, flags=tuple(flags)))
    assert answers.digest_of(case) == digest


def test_stored_oracle_responses_to_changed_requests_are_omitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "STORE", tmp_path)
    unchanged, changed, added = cases_of("base", "0.32.0")[:3]
    answer = ReceivedAnswer(200, [], b"{}")
    stored = [
        answers.stored(case, run, answer, {}) for case in (unchanged, changed) for run in (0, 1)
    ]
    answers.write_answers("0.32.0", "base", stored)
    cases = [unchanged, replace(changed, path="/elsewhere"), added]
    assert list(answers.current_answers("0.32.0", "base", cases)) == [unchanged.name]
