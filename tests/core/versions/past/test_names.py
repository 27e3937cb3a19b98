"""Each release since 0.10 has the routes, metric families and options of that vLLM.

What vLLM had is in vllm_facts/history.json, and, for some releases, recorded from real servers.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from app.core.application import create_app
from app.core.assembly.other_tasks import APIS, SPEECH
from app.core.server.flask.application import Understudy
from app.core.settings import load, settings_type
from config.declaration import UsageError
from tests.needs import RECORDING
from vllm_facts.history import read_history
from vllm_facts.names import has_begun
from vllm_facts.options import option_flags, options_of
from vllm_facts.serve import settings_of
from vllm_facts.version import DESCRIBED, PATCHES, parse_version, versions_up_to

FLAGS = ("--force-dummy-tokenizer", "--server-dev-mode", "true", "--enable-scale-out", "true")
HISTORY = read_history()
WITHOUT_METHODS = frozenset(("/docs", "/metrics"))
"""Routes of whole applications in vLLM, which declare no methods."""
ABORT = "/abort_requests"
OLDER = [name for name in PATCHES if name not in DESCRIBED]


def server_of(version: str, *flags: str) -> Understudy:
    return create_app(load((*FLAGS, "--vllm-version", version, *flags), {}))


def methods_of(app: Understudy) -> dict[str, set[str]]:
    """The methods of each route that vLLM has had."""
    known = {name.partition(" ")[2] for name in HISTORY.routes} - WITHOUT_METHODS
    methods: dict[str, set[str]] = {}
    for route in app.routes:
        if route.path in known:
            methods.setdefault(route.path, set()).update(route.methods)
    return methods


def families_of(app: Understudy) -> dict[str, set[str]]:
    """The families of vLLM with their labels, without those of times of creation."""
    text = app.test_client().get("/metrics").get_data(as_text=True)
    labels: dict[str, set[str]] = {}
    for block in re.split("^# HELP ", text, flags=re.MULTILINE)[1:]:
        name = block.partition(" ")[0]
        if name.startswith("vllm:") and not name.endswith("_created"):
            labels[name] = set(re.findall(r'(\w+)="', block)) - {"le"}
    return labels


@pytest.fixture(scope="module")
def newest_methods() -> dict[str, set[str]]:
    """Those of the code, which plays the last described version."""
    return methods_of(server_of(DESCRIBED[-1]))


@pytest.mark.parametrize("version", PATCHES)
def test_server_has_the_routes_of_the_release(
    version: str, newest_methods: dict[str, set[str]]
) -> None:
    real = HISTORY.methods_in(PATCHES[version])
    expected = {
        path: methods & real[path]
        for path, methods in newest_methods.items()
        if path in real and methods & real[path]
    }
    if not has_begun("0.26", version):  # where only servers for tokens have the route
        methods = expected.pop(ABORT, None)
        if methods is not None:
            assert methods_of(server_of(version, "--tokens-only", "true"))[ABORT] == methods
    if not has_begun("0.16", version):  # with errors for the tasks that the model does not have
        expected |= {path: {"POST"} for path in (*APIS, *SPEECH) if path in real}
    assert methods_of(server_of(version)) == expected


@pytest.mark.parametrize("version", PATCHES)
def test_server_has_the_metric_families_of_the_release(version: str) -> None:
    assert families_of(server_of(version)).keys() == HISTORY.families_in(PATCHES[version]).keys()


@pytest.mark.parametrize("version", OLDER)
def test_command_line_has_the_options_of_the_release(version: str) -> None:
    forms: set[str] = set()
    for name, option in options_of(versions_up_to(parse_version(version))).items():
        for flag in option_flags(name, option):
            forms.update(form for form in flag.forms if not form.startswith("--no-"))
    real = {name for name, lifetime in HISTORY.options.items() if lifetime.is_in(PATCHES[version])}
    unknown = {form for form in forms if form.startswith("--") and form not in HISTORY.options}
    assert {form for form in forms if form.startswith("--")} - unknown == real


@pytest.mark.parametrize("version", ["0.10", "0.19", "0.31"])
def test_option_of_a_later_release_is_refused(version: str) -> None:
    with pytest.raises(UsageError, match=r"flag --monokernel requires vLLM 0\.33"):
        settings_of(["model", "--vllm-version", version, "--monokernel"], {}, settings_type())


@pytest.mark.shared
@pytest.mark.parametrize("file", sorted(RECORDING.glob("vllm-*/names.json")), ids=str)
def test_server_has_the_names_of_a_recorded_server(file: Path) -> None:
    names: dict[str, Any] = json.loads(file.read_text("utf-8"))
    app = server_of(names["version"])
    real_families = {
        name for name in names["metrics"] if name.startswith("vllm:") and "_created" not in name
    }
    families = families_of(app)
    assert {name.removesuffix("_total") for name in families} == {
        name.removesuffix("_total") for name in real_families
    }
    for name, labels in families.items():
        facts = names["metrics"].get(name) or names["metrics"][name.removesuffix("_total")]
        assert labels == set(facts["labels"]) - {"le"}
    served = {route.path for route in app.routes}
    assert names["routes"].keys() - served == set()


@pytest.mark.parametrize(("version", "tokens"), [("0.22", 82.0), ("0.23", 50.0)])
def test_sum_of_tokens_of_steps_counts_cached_tokens_up_to_0_22(
    version: str, tokens: float
) -> None:
    client = server_of(version, "--enable-prefix-caching", "--block-size", "16").test_client()
    body = {"prompt": [*range(40)], "max_tokens": 1}
    for _ in range(2):
        assert client.post("/v1/completions", json=body).status_code == 200
    text = client.get("/metrics").text
    [total] = re.findall(r"^vllm:iteration_tokens_total_sum\{.*\} (\S+)$", text, re.MULTILINE)
    assert float(total) == tokens
