"""Defaults of a step by device and version, as vLLM's source decides them."""

import pytest

from vllm_facts.devices import DEVICES, MORE_DEVICES, find_device
from vllm_facts.step_defaults import StepDefaults, default_sequences, step_defaults
from vllm_facts.version import NEWEST, PATCHES, parse_version


def test_fields_of_the_newest_version_are_the_defaults_of_the_fields() -> None:
    assert step_defaults(parse_version(NEWEST)) == StepDefaults()


@pytest.mark.parametrize(
    ("field", "since"),
    [
        ("has_whole_graphs", "0.11"),
        ("async_scheduling", "0.14"),
        ("holds_whole_items", "0.22"),
        ("keeps_steps_in_flight", "0.26"),
    ],
)
def test_default_of_a_step_holds_from_its_first_version_on(field: str, since: str) -> None:
    holds = [name for name in PATCHES if getattr(step_defaults(parse_version(name)), field)]
    assert holds == list(PATCHES)[list(PATCHES).index(since) :]


@pytest.mark.parametrize(
    ("device", "version", "tokens", "sequences"),
    [
        ("l4", "0.10", 2048, 256),
        ("a100", "0.33", 2048, 256),
        ("gb10", "0.33", 2048, 256),
        ("h100", "0.20", 8192, 1024),
        ("b200", "0.20", 8192, 1024),
        ("b200", "0.27.1", 8192, 1024),
        ("b200", "0.28", 16_384, 1024),
        ("h200", "0.28", 8192, 1024),
        ("mi325x", "0.33", 16_384, 1024),
    ],
)
def test_defaults_follow_memory_and_version(
    device: str, version: str, tokens: int, sequences: int
) -> None:
    assert step_defaults(parse_version(version)).tokens(find_device(device)) == tokens
    assert default_sequences(find_device(device)) == sequences


@pytest.mark.parametrize("name", [*DEVICES, *MORE_DEVICES])
def test_model_that_reads_whole_items_has_steps_for_a_video(name: str) -> None:
    defaults = step_defaults(parse_version("0.22"))
    assert defaults.tokens(find_device(name), reads_whole_items=True) >= 2496
    older = step_defaults(parse_version("0.21"))
    device = find_device(name)
    assert older.tokens(device, reads_whole_items=True) == older.tokens(device)
