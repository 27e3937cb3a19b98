"""`speculative-config` of a simulated engine: synthetic acceptance, and what vLLM refuses."""

import json
from typing import Any

import pytest

from app.core.engine.profile import SpeculationRates
from app.core.settings import load, resolve, settings_type
from config import ConfigError
from config.sources import ignore_warning
from tests.core.engine.harness import PROFILE
from vllm_facts.serve import settings_of
from vllm_facts.speculative import drafts_of, synthetic_drafts
from vllm_facts.version import DESCRIBED

SYNTHETIC = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "rejection_sample_method": "synthetic",
}


def acceptance(**fields: Any) -> tuple[float, ...] | None:
    drafts = synthetic_drafts(json.dumps(SYNTHETIC | fields))
    return None if drafts is None else drafts.acceptance


@pytest.mark.parametrize(
    ("length", "chances"),
    [
        (1, (0.0, 0.0, 0.0)),
        (1.25, (0.25, 0.0, 0.0)),
        (2, (1.0, 0.0, 0.0)),
        (2.5, (1.0, 0.5, 0.0)),
        (4, (1.0, 1.0, 1.0)),
    ],
)
def test_acceptance_length_is_converted_to_a_probability_per_draft_token(
    length: float, chances: tuple[float, ...]
) -> None:
    assert acceptance(synthetic_acceptance_length=length) == chances


def test_acceptance_rates_per_position_become_conditional_probabilities() -> None:
    assert acceptance(synthetic_acceptance_rates=[0.8, 0.4, 0.1]) == (0.8, 0.5, 0.25)
    assert acceptance(synthetic_acceptance_rates=[0.5, 0, 0]) == (0.5, 0.0, 0.0)


def test_speculative_config_fields_may_contain_hyphens() -> None:
    assert acceptance(**{"synthetic-acceptance-length": 3}) == (1.0, 1.0, 0.0)


def test_suffix_decoding_has_a_default_number_of_draft_tokens() -> None:
    text = json.dumps(
        {
            "method": "suffix",
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_length": 5,
        }
    )
    drafts = synthetic_drafts(text)
    assert drafts is not None
    assert drafts.acceptance == (1.0,) * 4 + (0.0,) * 20


@pytest.mark.parametrize(
    "text",
    [
        "null",
        '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}',
        '{"model": "a/draft", "num_speculative_tokens": 3, "rejection_sample_method": "block"}',
        '{"method": "mtp", "num_speculative_tokens": 1}',
        '{"num_speculative_tokens": 8}',
    ],
)
def test_speculative_config_without_synthetic_acceptance_is_ignored(text: str) -> None:
    assert synthetic_drafts(text) is None


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({}, "exactly one of synthetic_acceptance_rates or synthetic_acceptance_length"),
        (
            {"synthetic_acceptance_length": 2, "synthetic_acceptance_rates": [1, 1, 0]},
            "exactly one of synthetic_acceptance_rates or synthetic_acceptance_length",
        ),
        ({"synthetic_acceptance_length": 4.5}, "must be in [1, 4], got 4.5"),
        ({"synthetic_acceptance_length": 0.5}, "must be in [1, 4], got 0.5"),
        ({"synthetic_acceptance_length": "long"}, "synthetic_acceptance_length"),
        ({"synthetic_acceptance_rates": [1, 0]}, "must have length 3, got [1.0, 0.0]"),
        ({"synthetic_acceptance_rates": [1.5, 1, 0]}, "entries must be in [0, 1]"),
        ({"synthetic_acceptance_rates": [0.5, 0.6, 0]}, "must be non-increasing"),
        (
            {"rejection_sample_method": "standard", "synthetic_acceptance_length": 2},
            "only valid with rejection_sample_method='synthetic'",
        ),
        ({"rejection_sample_method": "fast"}, "rejection_sample_method"),
        ({"synthetic_acceptance_lenght": 2}, "did you mean synthetic_acceptance_length?"),
        ({"num_speculative_tokens": 0, "synthetic_acceptance_length": 1}, ">= 1"),
        (
            {"num_speculative_tokens": None, "synthetic_acceptance_length": 2},
            "num_speculative_tokens must be provided",
        ),
        ({"method": "telepathy"}, "method must be one of"),
        ({"method": "eagle"}, "without speculative model"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size"),
    ],
)
def test_speculative_config_that_vllm_rejects_prevents_startup(
    fields: dict[str, Any], rule: str
) -> None:
    text = json.dumps(SYNTHETIC | fields)
    with pytest.raises(ConfigError) as caught:
        load(["--speculative-config", text], {})
    message = str(caught.value)
    assert message.startswith("setting speculative-config: ")
    assert "is not a valid vLLM speculative_config: " in message and rule in message


def test_spec_flags_add_missing_fields_to_the_speculative_config() -> None:
    words = ["model", "--spec-method", "ngram", "--spec-tokens", "3"]
    text = '{"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.5}'
    flags = settings_of([*words, "-sc", text], {}, settings_type())
    settings = resolve(flags, {}, ignore_warning)
    drafts = drafts_of(settings)
    assert drafts is not None
    assert drafts.acceptance == (1.0, 0.5, 0.0)
    assert not any("--spec-" in warning for warning in flags.warnings)


def test_spec_flags_that_repeat_a_field_of_the_config_are_rejected() -> None:
    with pytest.raises(ConfigError, match="flag --spec-tokens: cannot be combined with"):
        settings_of(
            ["model", "--spec-tokens", "3", "-sc", '{"num_speculative_tokens": 3}'],
            {},
            settings_type(),
        )
    with pytest.raises(ConfigError, match="must be a JSON object"):
        settings_of(["model", "--spec-tokens", "3", "-sc", "[]"], {}, settings_type())


@pytest.mark.parametrize(
    "names",
    [
        ("num-speculative-tokens", "num_speculative_tokens"),
        ("num_speculative_tokens", "num-speculative-tokens"),
    ],
)
def test_later_spelling_of_a_speculative_config_field_takes_precedence(
    names: tuple[str, str],
) -> None:
    fields: dict[str, object] = dict(SYNTHETIC, synthetic_acceptance_length=3)
    del fields["num_speculative_tokens"]
    fields |= dict(zip(names, (1, 2), strict=True))
    drafts = synthetic_drafts(json.dumps(fields))
    assert drafts is not None
    assert drafts.acceptance == (1.0, 1.0)


def test_spec_flags_replace_fields_spelled_with_hyphens() -> None:
    text = json.dumps(
        {
            "method": "ngram",
            "num-speculative-tokens": 5,
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_length": 3,
        }
    )
    flags = settings_of(["model", "--spec-tokens", "2", "-sc", text], {}, settings_type())
    settings = resolve(flags, {}, ignore_warning)
    drafts = drafts_of(settings)
    assert drafts is not None
    assert drafts.acceptance == (1.0, 1.0)


@pytest.mark.parametrize(
    ("fields", "last_version", "first_version", "rule"),
    [
        ({"method": "medusa", "model": "m"}, "0.32", "", "method must be one of"),
        ({"method": "mlp_speculator", "model": "m"}, "0.32", "", "method must be one of"),
        ({"method": "step5_mtp"}, "", "0.33", "vLLM 0.33 knows it"),
        ({"xpress_topc": 1}, "", "0.33", "unknown field xpress_topc; vLLM 0.33 knows it"),
        ({"rejection_sample_method": "fly"}, "", "0.33", "'fly'; vLLM 0.33 knows it"),
    ],
)
def test_valid_speculation_methods_depend_on_the_vllm_version(
    fields: dict[str, Any], last_version: str, first_version: str, rule: str
) -> None:
    config = {"method": "ngram", "num_speculative_tokens": 3} | fields
    words = ["--speculative-config", json.dumps(config)]
    names = DESCRIBED
    for number, name in enumerate(names):
        is_late = bool(last_version) and number > names.index(last_version)
        is_early = bool(first_version) and number < names.index(first_version)
        flags = [*words, "--vllm-version", name]
        if is_late or is_early:
            with pytest.raises(ConfigError) as caught:
                load(flags, {})
            assert rule in str(caught.value)
        else:
            assert load(flags, {}).engine.speculative_config is not None
    assert synthetic_drafts(json.dumps(config)) is None, "without a version, all names are valid"


@pytest.mark.parametrize(
    ("fields", "slots", "later_slots", "lookahead"),
    [
        ({"method": "ngram"}, 0, 0, 0),
        ({"method": "mtp"}, 0, 0, 3),
        ({"method": "suffix"}, 0, 0, 0),
        ({"method": "eagle3", "model": "m"}, 0, 0, 3),
        ({"method": "eagle3", "model": "m", "parallel_drafting": True}, 2, 2, 3),
        ({"method": "draft_model", "model": "m"}, 1, 1, 3),
        ({"method": None, "model": "m"}, 1, 1, 3),
        ({"method": None, "model": "m", "parallel_drafting": True}, 3, 3, 3),
        ({"method": "dflash", "model": "m"}, 3, 0, 4),
        ({"method": "dspark"}, 2, 0, 3),
    ],
)
def test_slots_and_lookahead_of_drafts_depend_on_the_speculation_method(
    fields: dict[str, Any], slots: int, later_slots: int, lookahead: int
) -> None:
    text = json.dumps(SYNTHETIC | {"synthetic_acceptance_length": 2} | fields)
    for versions, expected in ((("0.32",), slots), (("0.32", "0.33"), later_slots)):
        drafts = synthetic_drafts(text, versions)
        assert drafts is not None
        assert drafts.slots == expected
        assert PROFILE.with_drafts(drafts).speculation == SpeculationRates(
            acceptance=drafts.acceptance, draft_slots=expected, lookahead=lookahead
        )
