"""Reads the values of `--autoscale` and `--cold-start`."""

import re
from argparse import SUPPRESS
from collections.abc import Mapping, Sequence

from app.extensions.plugins.policies import AUTOSCALERS, AutoscalerStart, Decide, Look
from config.declaration import UsageError
from config.durations import parse_duration
from config.flags import FlagParser, as_argument, duration_of, number_of, size_of, whole_number
from workbench.load.autoscaler import METRICS, Policy, ScalingPolicy
from workbench.load.hpa import (
    MAX_PERIOD_S,
    MAX_WINDOW_S,
    MILLI,
    HorizontalPodAutoscaler,
    Rate,
)

PODS = whole_number(1, 10_000)
SECONDS = as_argument(parse_duration)


def read_policy(text: str, plugin_policies: Mapping[str, AutoscalerStart]) -> Policy:
    """Reads a policy.

    Forms are `hpa:metric=waiting,target=4,min=1,max=16`, `schedule:0s=2,60s=8` and
    `NAME:min=1,max=16` for a policy of a plugin. `plugin_policies` maps names to policies.

    Raises:
        ValueError: The text breaks a rule, which is the message.
        ArgumentTypeError: A value breaks a rule, which is the message.
    """
    name, _, values_text = text.partition(":")
    values = dict[str, str]()
    for part in values_text.split(","):
        key, equals, value = part.strip().partition("=")
        if not equals or key in values:
            raise ValueError(
                f"{name}: {part[:40]!r} must have the form NAME=VALUE with a unique NAME"
            )
        values[key] = value
    if name == "schedule":
        return _read_schedule(values)
    names = (*AUTOSCALERS, *plugin_policies)
    if name not in names:
        raise ValueError(f"{name[:40]!r} must be one of {', '.join(names)}")
    flags = [f"--{key}={value}" for key, value in values.items()]
    try:
        fields = vars(_make_parser(name).parse_args(flags))
    except UsageError as error:
        raise ValueError(f"{name}: {re.sub('argument --|--', '', str(error))}") from None
    if fields["min_pods"] > fields["max_pods"]:
        raise ValueError(
            f"{name}: min {fields['min_pods']} must not exceed max {fields['max_pods']}"
        )
    if name == "hpa":
        return HorizontalPodAutoscaler(**fields)
    return ScalingPolicy(**fields, start=plugin_policies[name])


def _make_parser(policy_name: str) -> FlagParser:
    """Makes the parser of a policy's values, as if each were a flag."""
    flags = FlagParser(add_help=False, allow_abbrev=False, argument_default=SUPPRESS)
    add = flags.add_argument
    add("--min", dest="min_pods", required=True, type=PODS)
    add("--max", dest="max_pods", required=True, type=PODS)
    if policy_name == "hpa":
        add("--metric", required=True, choices=METRICS)
        add("--target", required=True, type=number_of(1 / MILLI, 1e12, zero=True))
        add("--tolerance", type=number_of(0, 1e12, zero=True))
        for direction in ("up", "down"):
            add(f"--{direction}", type=as_argument(_read_rates))
            add(f"--select-{direction}", choices=("max", "min", "disabled"))
            add(f"--window-{direction}", type=duration_of(MAX_WINDOW_S))
    return flags


def _read_rates(text: str) -> list[Rate]:
    """Reads rates such as `100%/15s+4/15s`. Raises ValueError with the rule."""
    rates = []
    for part in text.split("+"):
        match = re.fullmatch(r"([1-9]\d{0,4})(%?)/(\w+)", part, re.ASCII)
        period_s = parse_duration(match[3]) if match else 0.0
        if not match or not 0 < period_s <= MAX_PERIOD_S:
            raise ValueError(
                "must consist of rates such as 100%/15s+4/15s, with periods of at most 30m"
            )
        rates.append((int(match[1]), bool(match[2]), period_s))
    return rates


def _read_schedule(values: Mapping[str, str]) -> ScalingPolicy:
    steps = sorted((SECONDS(time), PODS(pods)) for time, pods in values.items())
    if steps[0][0] or len(dict(steps)) < len(steps):
        raise ValueError("schedule: must begin with 0s=PODS and must not repeat a time")
    counts = [pods for _, pods in steps]
    return ScalingPolicy(min(counts), max(counts), _Schedule(steps).start)


class _Schedule:
    """Decisions by time: each number of pods holds from its seconds after the first request on."""

    def __init__(self, steps: Sequence[tuple[float, int]]) -> None:
        self._steps = steps

    def start(self, pods: int) -> Decide:
        return self._decide

    def _decide(self, look: Look) -> int:
        return [pods for since_s, pods in self._steps if since_s <= look.at_s][-1]


def read_cold_start(text: str, weight_bytes: float) -> float:
    """Reads a cold start, and returns its seconds.

    It is a sum of durations and of readings of weights: `90s`, `40s+2GB/s`, `40s+30GB@2GB/s`.
    Weights without a size have `weight_bytes`.

    Raises:
        ValueError: The text breaks a rule, which is the message.
        ArgumentTypeError: A value breaks a rule, which is the message.
    """
    total_s = 0.0
    for part in text.split("+"):
        size, _, bandwidth = part.rpartition("@")
        if not bandwidth.endswith("/s"):
            total_s += SECONDS(part)
            continue
        read_bytes = size_of(size) if size else weight_bytes
        if not read_bytes:
            raise ValueError(f"{part!r} must include the size of the weights, as in 30GB@2GB/s")
        total_s += read_bytes / size_of(bandwidth.removesuffix("/s"))
    if total_s < 0:
        raise ValueError("must not be negative")
    return total_s
