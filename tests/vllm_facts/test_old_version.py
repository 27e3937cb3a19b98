"""What `serve` says about versions of vLLM that it does not simulate any more."""

import pytest

from app.core.settings import settings_type
from config.declaration import ConfigError
from vllm_facts.facts import OPTIONS
from vllm_facts.history import read_history
from vllm_facts.names import FILE
from vllm_facts.options import names_of, options_of
from vllm_facts.serve import settings_of
from vllm_facts.version import DESCRIBED, FIRST, RULE

REMOVED = {
    "--worker-use-ray": "0.7",
    "--num-speculative-tokens": "0.8",
    "--use-v2-block-manager": "0.10",
    "--enable-prompt-adapter": "0.10.2",
    "--num-lookahead-slots": "0.12",
    "--max-num-partial-prefills": "0.27",
}
"""Options that vLLM removed -> first release that lacks them, as the history names releases."""
REMOVED_BY = {
    "--enable-reasoning": ("0.10", 20979),
    "--num-scheduler-steps": ("0.10.1", 22779),
    "--tokenizer-pool-size": ("0.10", 20968),
    "--max-seq-len-to-capture": ("0.11", 25543),
    "--preemption-mode": ("0.11", 25334),
    "--rope-scaling": ("0.11.1", 28006),
    "--guided-decoding-backend": ("0.12", 29326),
    "--lora-extra-vocab-size": ("0.12", 28545),
    "--override-pooler-config": ("0.12", 29402),
    "--task": ("0.13", 30397),
    "--swap-space": ("0.18", 36216),
    "--disable-frontend-multiprocessing": ("0.19", 37612),
    "--calculate-kv-scales": ("0.28", 49389),
}
"""Options that vLLM removed -> the same version, and the pull request of vLLM that removed them."""


def refusal(*argv: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        settings_of(["model", *argv], environ or {}, settings_type())
    return str(caught.value)


@pytest.mark.parametrize(
    ("option", "version"),
    [*REMOVED.items(), *((option, version) for option, (version, _) in REMOVED_BY.items())],
)
def test_removed_options_have_the_version_without_them(option: str, version: str) -> None:
    assert read_history().options[option].gone_in == version


def test_tables_have_the_options_of_the_supported_versions() -> None:
    history = read_history()
    for index, version in enumerate(DESCRIBED):
        forms: set[str] = set()
        for name in options_of(DESCRIBED[: index + 1]):
            forms.update(form for form in names_of(name) if not form.startswith("--no-"))
        forms = {form for form in forms if form.startswith("--")}
        assert forms - history.options.keys() == set()
        removed = {form for form in forms if history.options[form].is_gone_in(version)}
        assert removed == set()


def test_options_that_came_with_a_version_are_the_same_in_the_tables() -> None:
    history = read_history()
    since = {f"--{name}": option.since for name, option in OPTIONS.items() if option.since}
    assert {name: history.options[name].periods for name in since} == {
        name: [(version, "")] for name, version in since.items()
    }


def test_replacements_without_gaps() -> None:
    history = read_history()
    minors = range(6, 6 + len(history.releases))
    assert [*history.releases] == [f"0.{minor}" for minor in minors]
    assert len(minors) >= 28
    assert history.metrics["vllm:time_per_output_token_seconds"].periods == [("", "0.15")]
    assert history.metrics["vllm:gpu_cache_usage_perc"].replacement == "vllm:kv_cache_usage_perc"
    assert history.metrics["vllm:spec_decode_num_drafts_total"].gone_in == ""
    assert history.options["--disable-log-requests"].replacement == "--enable-log-requests"
    assert history.options["--num-scheduler-steps"].replacement == "unknown"
    assert history.variables["VLLM_USE_V1"].gone_in


def test_the_file_is_small() -> None:
    assert FILE.stat().st_size < 300_000


def test_refusal_of_an_earlier_version_says_what_the_oldest_supported_one_does() -> None:
    text = refusal(
        *("--vllm-version", "0.9", "--swap-space", "4", "--worker-use-ray", "--nonsense"),
        *("--enable-lora", "--max_num_seqs=8"),
        environ={"VLLM_USE_V1": "1", "HOME": "/"},
    )
    start, _, advice = text.partition(f"; vLLM {FIRST} ")
    assert start == f"setting vllm-version: '0.9' (flag --vllm-version) {RULE}"
    assert "--worker-use-ray (removed in 0.7, use --distributed-executor-backend)" in advice
    assert "--nonsense (unknown)" in advice
    assert "accepts --swap-space, --enable-lora, --max-num-seqs" in advice


def test_keys_in_json_are_found() -> None:
    config = '{"local_cache_dir": "/x", "level": 3}'
    text = refusal("--vllm-version", "v0.9.2", "--compilation-config", config)
    assert "--compilation-config.local_cache_dir (removed in 0.9)" in text
    assert "--compilation-config.level" not in text


def test_the_version_can_come_from_a_variable() -> None:
    text = refusal("--task", "embed", environ={"SIM_VLLM_VERSION": "0.9"})
    assert "(environment variable SIM_VLLM_VERSION)" in text
    assert "accepts --task" in text


@pytest.mark.parametrize("version", ["0.5", "0.99", "cu128"])
def test_versions_outside_the_tables_are_refused_without_advice(version: str) -> None:
    argv = ["model", "--vllm-version", version]
    flags = settings_of(argv, {}, settings_type())
    assert flags.values["vllm-version"] == version  # the settings refuse it
