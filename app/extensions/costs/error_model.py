"""Errors of computed profiles: intervals from the residuals of the nearest measured servers.

`known_errors.json` has a residual for each measured cell: the logarithm of measured over simulated
TPOT and TTFT. `python -m benchmarks.residuals` makes it, and `python -m benchmarks.coverage` tests
the intervals by leaving out one group of cells at a time. Start reading at `ErrorModel.spread`.
"""

from collections import defaultdict
from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from math import exp, inf, log2
from pathlib import Path
from statistics import NormalDist, median

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from app.shared.statistics import weighted_quantiles
from vllm_facts.devices import GENERATIONS

TABLE = Path(__file__).with_name("known_errors.json")
COVERAGE = 0.8
"""Share of measured servers that an interval is made for."""
UPPER_80 = NormalDist().inv_cdf(0.5 + COVERAGE / 2)
"""Half width of the interval in standard deviations."""
NEIGHBOR_SCALES = {"tpot": 0.1, "ttft": 0.15}
"""Distance beyond the nearest neighbor at which a residual has 1/e of its weight.

Servers that differ in their parallelism alone have similar errors at the same load, and other
errors at another one. Errors of TTFT depend more on the host, so that more residuals count.
"""
NEIGHBOR_GROWTH = 0.1
"""Growth of that distance with the one of the nearest neighbor: far from all, many count."""
CENTER_SCALE = 0.6
"""Distance of the nearest neighbor at which its bias counts 1/e."""
CHOSEN_CENTER_SCALE = 0.2
"""The same for a server that a plan chooses. At a distance of 0.3, servers have 0.2 to 0.4 of the
bias of their neighbors. A plan prefers the servers whose neighbors happened to be fast, so that a
bias that counts too much makes it miss its limits.
"""
PRIOR_GROUPS = 2.0
"""Groups that the residuals of all servers count as, beside the near groups, for the spread of a
chosen server. One or two near groups agree by chance: of errors with the least 60 % of the spreads
around near groups, 22 % exceed the upper end of the 80 % interval of TTFT, where 10 % should.
"""
WIDENINGS = {"tpot": 0.35, "ttft": 0.4}
"""Growth of an interval with the distance of the nearest neighbor."""
MIN_HALF_WIDTHS = {"tpot": 0.035, "ttft": 0.075}
"""Least half width, as a logarithm: repeated runs of one server differ by as much."""
NEAR = 0.5
"""Distance beyond which a measurement is not near."""
FAR = 1.0
FAR_HALF_WIDTH = 0.2
"""Growth of the least half width with the distance beyond `FAR`."""
SHEET_GENERATIONS = frozenset(("cdna", "gaudi", None))
"""Generations whose costs are shares of the data sheet, and not those of kernels."""


EVIDENCE_TEXTS = (
    "no measurement is near",
    "the same kernels were measured on other devices",
    "other models were measured on this device",
    "this model, or one like it, was measured on this device",
)
"""Level of evidence -> a text about the measurements."""


class Evidence(IntEnum):
    """How near the measurements behind an interval are, the nearest last."""

    NONE = 0
    KERNELS = 1
    """The same format and kind of model on other devices."""
    CARD = 2
    """Other models on the same device."""
    PAIR = 3
    """The same model in the same format on the same device."""

    @property
    def text(self) -> str:
        """Returns a text about the measurements."""
        return EVIDENCE_TEXTS[self]


class Situation(Struct, frozen=True, kw_only=True):
    """The facts of a server that decide which measurements are near."""

    family: str
    """Architecture of the model, without `ForCausalLM`."""
    weights: str
    """Format of the weights."""
    has_experts: bool
    device: str
    devices: int
    expert_parallel: bool
    data_parallel: bool
    version: int
    """Minor number of vLLM's version."""
    prompt_graphs: bool = False
    """True if prompts run as CUDA graphs, which vLLM does not capture by default."""
    concurrency: float = 1.0
    """Requests in flight, on average."""
    input_tokens: float = 1024.0
    output_tokens: float = 1024.0


class KnownError(Struct, frozen=True, kw_only=True):
    """Residuals of a measured cell; None without a documented client."""

    situation: Situation
    group: str
    tpot: float | None
    ttft: float | None
    source: str = ""
    """Address of the publication; empty for the cells of InferenceMAX."""

    def residual(self, figure: str) -> float | None:
        """Returns the residual of `tpot` or `ttft`."""
        return self.tpot if figure == "tpot" else self.ttft


class ErrorSpread(Struct, frozen=True):
    """Distribution of measured over simulated values, as logarithms."""

    center: float
    half_width: float
    """Half width of the 80 % interval."""
    distance: float
    """Distance of the nearest measurement; 0 for the same situation."""
    nearest: str
    """Group of the nearest measurement."""
    chosen_center: float
    chosen_half_width: float
    """Center and half width for a server that a plan chooses, which trust near residuals less."""
    evidence: Evidence = Evidence.PAIR
    source: str = ""
    """Address of the nearest measurement, where people published it."""

    @property
    def low(self) -> float:
        """Lower end of the interval, as a factor."""
        return exp(self.center - self.half_width)

    @property
    def high(self) -> float:
        """Upper end of the interval, as a factor."""
        return exp(self.center + self.half_width)

    def factor(self, confidence: float) -> float:
        """Returns the factor that a chosen server does not exceed with this probability."""
        deviations = NormalDist().inv_cdf(confidence)
        return exp(self.chosen_center + deviations / UPPER_80 * self.chosen_half_width)


class ErrorModel:
    """Intervals from the residuals of near measurements."""

    def __init__(self, errors: Sequence[KnownError]) -> None:
        self._errors = merge_repeats(errors)
        self._server: Situation | None = None
        """The last situation without its load: many loads in a row have one server."""
        self._server_distances: list[float] = []

    def spread(self, situation: Situation, figure: str) -> ErrorSpread:
        """Returns the distribution of the errors of `tpot` or `ttft`.

        Each residual has a weight that falls with its distance. The center is their median, drawn
        toward 0 where nothing near was measured; the half width holds 80 % of their weight, and
        grows with the distance of the nearest residual. The half width for a chosen server is a
        geometric mean of one for near residuals and one for all; more near groups raise the weight
        of the near residuals.
        """
        distances = []
        groups = []
        min_distance = inf
        nearest = ""
        evidence = Evidence.NONE
        for error, server_distance in zip(self._errors, self._servers(situation), strict=True):
            residual = error.residual(figure)
            if residual is None:
                continue
            distance = server_distance + load_distance(situation, error.situation)
            distances.append((residual, distance))
            groups.append(error.group)
            evidence = max(evidence, evidence_of(situation, error.situation))
            if distance < min_distance:
                min_distance = distance
                nearest = error.group
        scale = NEIGHBOR_SCALES[figure] + NEIGHBOR_GROWTH * min_distance
        weighted = [
            (residual, exp((min_distance - distance) / scale)) for residual, distance in distances
        ]
        bias = next(weighted_quantiles(weighted, [0.5]))
        center = exp(-min_distance / CENTER_SCALE) * bias
        chosen_center = exp(-min_distance / CHOSEN_CENTER_SCALE) * bias
        min_half_width = MIN_HALF_WIDTHS[figure] + FAR_HALF_WIDTH * max(0.0, min_distance - FAR)
        half_width = max(min_half_width, _half_width(weighted, center))
        unweighted = [(residual, 1.0) for residual, _ in weighted]
        near_half_width = max(min_half_width, _half_width(weighted, chosen_center))
        all_half_width = max(min_half_width, _half_width(unweighted, chosen_center))
        near_groups = _effective_groups(groups, [weight for _, weight in weighted])
        near_share = near_groups / (near_groups + PRIOR_GROUPS)
        return ErrorSpread(
            center=center,
            half_width=half_width * (1 + WIDENINGS[figure] * min_distance),
            distance=min_distance,
            nearest=nearest,
            chosen_center=chosen_center,
            chosen_half_width=near_half_width**near_share * all_half_width ** (1 - near_share),
            evidence=evidence,
        )

    def has_device(self, device: str) -> bool:
        """Returns whether a server with the device was measured."""
        return any(error.situation.device == device for error in self._errors)

    def _servers(self, situation: Situation) -> list[float]:
        """Returns the distance of each error's server."""
        server = replace(situation, concurrency=1.0, input_tokens=1.0, output_tokens=1.0)
        if server != self._server:
            self._server_distances = [
                _server_distance(server, error.situation) for error in self._errors
            ]
            self._server = server
        return self._server_distances


def _half_width(weighted: Sequence[tuple[float, float]], center: float) -> float:
    """Returns the distance from the center that holds `COVERAGE` of the weight of residuals."""
    deviations = [(abs(residual - center), weight) for residual, weight in weighted]
    return next(weighted_quantiles(deviations, [COVERAGE]))


def _effective_groups(groups: Sequence[str], weights: Sequence[float]) -> float:
    """Returns the number of groups of equal weight whose mean would vary as much; at least 1.

    Args:
        groups: Group of each residual.
        weights: Weight of each residual.
    """
    by_group: dict[str, float] = defaultdict(float)
    for group, weight in zip(groups, weights, strict=True):
        by_group[group] += weight
    squares = sum(weight**2 for weight in by_group.values())
    return sum(weights) ** 2 / squares


def merge_repeats(errors: Sequence[KnownError]) -> list[KnownError]:
    """Returns one error for all runs of a server with one load.

    Repeated runs are no evidence about other servers. A run that two sources list counts once.
    """
    repeats: dict[tuple[str, Situation], list[KnownError]] = {}
    for error in errors:
        repeats.setdefault((error.group, error.situation), []).append(error)
    return [
        KnownError(
            situation=situation,
            group=group,
            tpot=_median_of_runs(runs, "tpot"),
            ttft=_median_of_runs(runs, "ttft"),
        )
        for (group, situation), runs in repeats.items()
    ]


def _median_of_runs(runs: Sequence[KnownError], figure: str) -> float | None:
    """Returns the median residual of the runs that differ; None if no run has one."""
    residuals = {run.residual(figure) for run in runs}
    values = [residual for residual in residuals if residual is not None]
    return median(values) if values else None


def evidence_of(situation: Situation, measured: Situation) -> Evidence:
    """Returns how near a measured server is to a server."""
    same_kernels = (
        situation.weights == measured.weights and situation.has_experts == measured.has_experts
    )
    if situation.device == measured.device:
        is_pair = same_kernels and situation.family == measured.family
        return Evidence.PAIR if is_pair else Evidence.CARD
    generations = {GENERATIONS.get(each.device) for each in (situation, measured)}
    if same_kernels and not generations & SHEET_GENERATIONS:
        return Evidence.KERNELS
    return Evidence.NONE


def distance_between(left: Situation, right: Situation) -> float:
    """Returns how unlike two situations are; 0 for equal ones.

    Another family, format, device or kind of parallelism counts a fixed amount, a size counts by
    the doublings between the two, and versions by their number.
    """
    return _server_distance(left, right) + load_distance(left, right)


def _server_distance(left: Situation, right: Situation) -> float:
    """Returns the part of the distance that does not depend on the loads."""
    distance = 0.0
    distance += 0.7 * (left.family != right.family)
    distance += 0.7 * (left.weights != right.weights)
    distance += 1.0 * (left.has_experts != right.has_experts)
    distance += 0.5 * (left.device != right.device)
    distance += 1.0 * (GENERATIONS.get(left.device) != GENERATIONS.get(right.device))
    distance += 0.5 * (left.expert_parallel != right.expert_parallel)
    distance += 0.5 * (left.prompt_graphs != right.prompt_graphs)
    distance += 0.7 * (left.data_parallel != right.data_parallel)
    distance += 0.25 * _doublings(left.devices, right.devices)
    distance += min(0.6, 0.12 * abs(left.version - right.version))
    return distance


def load_distance(left: Situation, right: Situation) -> float:
    """Returns the part of the distance by requests in flight and tokens of a request."""
    distance = 0.12 * _doublings(left.concurrency, right.concurrency)
    distance += 0.2 * _doublings(left.input_tokens, right.input_tokens)
    distance += 0.05 * _doublings(left.output_tokens, right.output_tokens)
    return distance


def _doublings(left: float, right: float) -> float:
    """Returns the doublings between two sizes of at least 1."""
    return abs(log2(max(1.0, left) / max(1.0, right)))


def read_errors() -> list[KnownError]:
    """Returns the errors that are shipped."""
    return msgspec.json.decode(TABLE.read_bytes(), type=list[KnownError])


@cache
def known_errors() -> ErrorModel:
    """Returns the model of the errors that are shipped."""
    return ErrorModel(read_errors())
