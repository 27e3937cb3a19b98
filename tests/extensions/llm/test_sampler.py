"""What is likely, beside a plain computation in numpy; and draws that depend on nothing but their
own row.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.extensions.llm.draw import draw, limit
from app.extensions.llm.errors import RequestError
from app.extensions.llm.sampler import adjust, logprobs_of, sample
from app.extensions.llm.sampling_params import SamplingParams
from app.extensions.llm.sampling_state import SamplingState
from tests.running_server import ROOT

pytestmark = pytest.mark.engine

Numbers = np.ndarray[tuple[int], np.dtype[np.float64]]


def state(
    params: SamplingParams, prompt: list[int] | None = None, output: list[int] | None = None
) -> SamplingState:
    return SamplingState(params, prompt or [], output or [], params.seed or 0)


def oracle(logits: Numbers, params: SamplingParams) -> Numbers:
    """Probabilities after temperature, min_p, top_k and top_p, one after the other over all tokens."""
    logits = logits / params.temperature
    shares = softmax(logits)
    shares[shares < shares.max() * params.min_p] = 0
    order = np.argsort(-shares, kind="stable")
    if params.top_k > 0:
        shares[order[params.top_k :]] = 0
    shares /= shares.sum()
    cumulative = np.cumsum(shares[order]) - shares[order]
    shares[order[cumulative >= params.top_p]] = 0
    return shares / shares.sum()


def softmax(logits: Numbers) -> Numbers:
    shares = np.exp(logits - logits.max())
    return shares / shares.sum()


LIMITS = st.builds(
    SamplingParams,
    temperature=st.floats(0.2, 2),
    top_k=st.sampled_from([-1, 0, 1, 3, 50]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
)


@settings(max_examples=50, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([5, 100, 700, 3000]),
    st.lists(LIMITS, min_size=1, max_size=4),
)
def test_top_p_top_k_and_min_p_keep_the_same_tokens_as_the_reference(
    seed: int, size: int, params: list[SamplingParams]
) -> None:
    rows = np.random.default_rng(seed).normal(0, 3, (len(params), size))
    temperatures = torch.tensor(
        [[row_params.temperature] for row_params in params], dtype=torch.float64
    )
    shares = limit(torch.from_numpy(rows) / temperatures, params).softmax(-1)
    for row, logits, row_params in zip(shares.numpy(), rows, params, strict=True):
        np.testing.assert_allclose(row, oracle(logits, row_params), atol=1e-9)


def test_top_k_and_top_p_keep_tokens_tied_with_the_last_kept_token() -> None:
    row = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, 0.0]])
    for params in (SamplingParams(top_k=2), SamplingParams(top_p=0.7)):
        assert limit(row.clone(), [params]).isfinite().tolist() == [
            [False, True, True, True, True, False]
        ]


def state_at(params: SamplingParams, seed: int, position: int) -> SamplingState:
    return SamplingState(params, [], range(position), seed)  # type: ignore[arg-type]  # only its length counts


SEEDS = st.integers(-(2**63), 2**64 + 128)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-50, 50), min_size=1, max_size=200), SEEDS, st.integers(0, 5000), LIMITS)
def test_every_sampled_token_passes_the_top_k_top_p_and_min_p_limits(
    logits: list[float], seed: int, position: int, params: SamplingParams
) -> None:
    row = torch.tensor([[-torch.inf, *logits, -torch.inf]])
    left = limit(row / params.temperature, [params])[0].isfinite()
    [token] = draw(row, [state_at(params, seed, position)]).tolist()
    assert left[token]


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(0, 10**6), st.sampled_from([2, 64, 65, 320, 1000]), st.integers(1, 9))
def test_sampled_token_depends_only_on_its_row_of_logits(
    data: st.DataObject, numbers: int, size: int, count: int
) -> None:
    logits = torch.from_numpy(np.random.default_rng(numbers).normal(0, 3, (count, size))).float()
    states = [
        state_at(data.draw(LIMITS), data.draw(SEEDS), data.draw(st.integers(0, 99)))
        for _ in range(count)
    ]
    together = draw(logits, states).tolist()
    order = data.draw(st.permutations(range(count)))
    assert draw(logits[order], [states[row] for row in order]).tolist() == [
        together[row] for row in order
    ]
    assert [draw(logits[row : row + 1], [states[row]]).item() for row in range(count)] == together


FLAT = np.zeros(130)
HILLS = np.random.default_rng(1).normal(0, 1.5, 130)
CLIFF = np.array([-np.inf] * 3 + [-80.0, 0.0, 0.0, 2.0] + [-np.inf] * 70 + [1.0])
"""Ties, tokens that never come, one that almost never does, and the second block's only one."""


def drawn(
    logits: Numbers, params: SamplingParams, places: Sequence[tuple[int, int]]
) -> NDArray[np.int64]:
    """The token of each (seed, position)."""
    rows = torch.from_numpy(logits).float().expand(len(places), -1)
    return draw(rows, [state_at(params, seed, position) for seed, position in places]).numpy()


def chi_square(seen: Numbers, expected: Numbers) -> float:
    """In standard deviations above its mean."""
    is_expected = expected > 1
    assert not seen[expected == 0].any()
    degrees = max(1, int(is_expected.sum()) - 1)
    return float(
        (((seen - expected)[is_expected] ** 2 / expected[is_expected]).sum() - degrees)
        / np.sqrt(2 * degrees)
    )


@pytest.mark.parametrize(
    "logits", [FLAT, HILLS, CLIFF, np.array([0.3])], ids=["flat", "hills", "cliff", "one"]
)
@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(temperature=0.8, top_k=6, top_p=0.95)]
)
@pytest.mark.parametrize("along", ["seeds", "positions"])
def test_sampling_frequencies_match_the_reference_distribution(
    logits: Numbers, params: SamplingParams, along: str
) -> None:
    count = 20_000
    places = [(number, 3) if along == "seeds" else (3, number) for number in range(count)]
    shares = (
        limit(torch.from_numpy(logits)[None] / params.temperature, [params]).softmax(-1)[0].numpy()
    )
    seen = np.bincount(drawn(logits, params, places), minlength=len(logits)).astype(float)
    assert chi_square(seen, shares * count) < 4


@pytest.mark.parametrize("step", [(0, 1), (1, 0), (1, -1), (2**32, 0)], ids=str)
def test_samples_of_neighboring_seeds_and_positions_are_independent(step: tuple[int, int]) -> None:
    """Of the next position, of the next choice, of both, and of a seed with the same lower word."""
    size = 9
    count = 20_000
    first_places = [
        (seed, position) for seed in range(200) for position in range(1, count // 200 + 1)
    ]
    second_places = [(seed + step[0], position + step[1]) for seed, position in first_places]
    params = SamplingParams()
    logits = np.linspace(0, 1, size)
    pairs = drawn(logits, params, first_places) * size + drawn(logits, params, second_places)
    shares = np.outer(softmax(logits), softmax(logits)).ravel()
    assert chi_square(np.bincount(pairs, minlength=size * size).astype(float), shares * count) < 4


def test_small_changes_in_logits_change_few_sampled_tokens() -> None:
    """A sum of probabilities in the order of ids, walked to a random number, changes seven times as
    many.
    """
    random = np.random.default_rng(3)
    logits = torch.from_numpy(random.normal(0, 2, (400, 5000))).float()
    rounded = logits + torch.from_numpy(random.normal(0, 0.05, logits.shape)).float()
    states = [state_at(SamplingParams(), seed, 0) for seed in range(len(logits))]
    changed = (draw(logits, states) != draw(rounded, states)).float().mean()
    apart = (logits.softmax(-1) - rounded.softmax(-1)).abs().sum(-1).mean() / 2
    assert 0 < changed < 4 * apart


def test_penalties_and_logit_bias_change_only_the_logits_of_their_tokens() -> None:
    params = SamplingParams(
        repetition_penalty=2.0,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        logit_bias={3: -1.5, 4: 100},
    )
    row = torch.tensor([1.0, -1.0, 2.0, 3.0, 0.0, 5.0])
    changed = row.clone()
    adjust(changed, state(params, [0, 1], [2, 2, 1]))
    expected = [0.5, -2.0 - 0.25 - 0.5, 1.0 - 0.5 - 0.5, 1.5, 100.0, 5.0]
    assert changed.tolist() == pytest.approx(expected)
    sample(row[None], [state(params, [0, 1], [2, 2, 1])])
    assert row.tolist() == [1.0, -1.0, 2.0, 3.0, 0.0, 5.0]


def test_logprobs_are_computed_from_the_unmodified_logits() -> None:
    row = torch.tensor([1.0, 3.0, 2.0, 0.0])
    first_entry, other = logprobs_of(torch.stack((row, row.flip(0))), [2, 0], [2, 1])
    assert (other.rank, other.top) == (4, [(2, first_entry.top[0][1])])
    reference = np.log(softmax(row.double().numpy()))
    assert (first_entry.token_id, first_entry.rank, [token for token, _ in first_entry.top]) == (
        2,
        2,
        [1, 2],
    )
    assert first_entry.logprob == pytest.approx(reference[2], abs=1e-6)
    params = SamplingParams(temperature=0.0, logit_bias={3: 100.0}, logprobs=0)
    [sampled] = sample(row[None], [state(params)])
    assert (sampled.token_id, sampled.logprobs.rank, sampled.logprobs.top) == (3, 4, [])
    assert sampled.logprobs.logprob == pytest.approx(reference[3], abs=1e-6)


def test_allowed_token_ids_and_bad_words_restrict_sampling() -> None:
    row = torch.tensor([1.0, 9.0, 2.0, 3.0])
    params = SamplingParams(temperature=0.0)
    only = SamplingParams(temperature=0.0, allowed_token_ids=[0, 2])
    assert sample(row[None], [state(only)])[0].token_id == 2
    for output, expected in (([3], 3), ([2], 1), ([], 1)):
        banning = SamplingState(params, [], output, 0, bad_words=[[3, 1], [0]])
        assert sample(row[None], [banning])[0].token_id == expected


@pytest.mark.parametrize("broken", [[float("nan"), 1.0], [float("inf"), 1.0], [-float("inf")] * 2])
def test_invalid_logits_fail_only_the_request_of_their_row(broken: list[float]) -> None:
    rows = torch.tensor([[0.0, 1.0], broken, [1.0, 0.0]])
    for params in (SamplingParams(temperature=0.0), SamplingParams(temperature=1.0, top_p=0.1)):
        for logits in (rows, rows.numpy()):
            sampled = sample(logits, [state(params) for _ in range(3)])
            assert [result.token_id for result in sampled] == [1, None, 0]


WRONG = (
    dict(temperature=-0.1), dict(temperature=float("nan")), dict(top_p=0.0), dict(top_k=-2), dict(min_p=1.5),
    dict(max_tokens=0), dict(min_tokens=5, max_tokens=4), dict(n=0), dict(stop=["a", ""]), dict(logprobs=-2),
    dict(presence_penalty=3), dict(repetition_penalty=0), dict(logit_bias={1: float("nan")}),
    dict(allowed_token_ids=[]), dict(use_beam_search=True),
    dict(logprob_token_ids=(1,)), dict(thinking_token_budget=0), dict(num_beams=4), dict(length_penalty=0.5),
    dict(use_cache=False), dict(cache_precision="float16"),
)  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_unsupported_sampling_parameters_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        SamplingParams(**wrong)


def test_documentation_lists_each_sampling_field() -> None:
    docs = (ROOT / "docs" / "llm.md").read_text(encoding="utf-8")
    table = docs[docs.index("| field | default | meaning |") :]
    assert [name for name in SamplingParams.__struct_fields__ if f"`{name}`" not in table] == []
