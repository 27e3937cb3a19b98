"""The families of one engine by name, built from the table.

Every series exists from the start, at zero, so that rates are right from the first event on.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import product
from typing import cast

from app.core.base.metrics.instruments import Counter, Family, Gauge, Histogram, Instrument
from app.core.base.metrics.spec import Bounds, Spec
from app.core.base.metrics.table import CACHE_CONFIG, TABLE


def token_bounds(max_model_len: int) -> Bounds:
    """Returns 1, 2, 5, 10, 20, 50 ... up to the context length in tokens; none for 0."""
    steps = (step * 10**power for power in range(len(str(max_model_len))) for step in (1, 2, 5))
    return tuple(float(step) for step in steps if step <= max_model_len)


def engine_table(
    cache_config: Mapping[str, str], block_times: bool = False, older_names: bool = False
) -> tuple[Spec, ...]:
    """Returns the families that every engine has; `BLOCK_TIMES` and `older_names` on demand.

    `cache_config` overrides labels of vllm:cache_config_info.
    """
    labels = {label: (value,) for label, value in {**CACHE_CONFIG, **cache_config}.items()}
    specs = [spec for spec in TABLE if older_names or not spec.alias_of]
    if block_times:
        from app.core.base.metrics.optional_families import BLOCK_TIMES

        specs += BLOCK_TIMES
    specs.append(
        Spec(
            "vllm:cache_config_info",
            "gauge",
            "Always 1; its labels are the settings of the KV cache.",
            base=("engine",),
            extra=labels,
            value=1,
        )
    )
    return tuple(specs)


class EngineFamilies:
    """The families of one engine by name, with their series at initial values.

    `server` has the values of the labels in `SERVER`; `now` returns Unix seconds. Engines may share
    `families`, which then have the series of all engines.
    """

    def __init__(
        self,
        table: Iterable[Spec],
        server: Mapping[str, str],
        now: Callable[[], float],
        max_model_len: int = 0,
        families: dict[str, Family[Instrument]] | None = None,
    ) -> None:
        self.by_name = {} if families is None else families
        self._base: dict[str, dict[str, str]] = {}
        self._server = server
        self._now = now
        self._token_bounds = token_bounds(max_model_len)
        self.add(table)

    def add(self, table: Iterable[Spec]) -> None:
        """Adds the families of the table that are missing."""
        for spec in table:
            if spec.name not in self._base:
                self._add(spec)

    def counter(self, name: str, **labels: str) -> Counter:
        """Returns the counter or gauge `vllm:{name}` or `name` with the server's labels.

        `labels` are further labels.
        """
        return cast(Counter, self._instrument(name, labels))

    def histogram(self, name: str, **labels: str) -> Histogram:
        """Returns a histogram; see `counter`."""
        return cast(Histogram, self._instrument(name, labels))

    def render(self) -> str:
        """Returns all families in the Prometheus text format."""
        return "".join(family.render() for family in self.by_name.values())

    def _add(self, spec: Spec) -> None:
        base = self._base[spec.name] = {label: self._server[label] for label in spec.base}
        if spec.name not in self.by_name:
            self.by_name[spec.name] = self._family(spec)
        family = self.by_name[spec.name]
        if spec.alias_of:
            for labels, instrument in self.by_name[spec.alias_of].children():
                if base.items() <= labels.items():
                    family.add(instrument, labels)
            return
        for values in product(*spec.extra.values()):
            instrument = family.labels(**base, **dict(zip(spec.extra, values, strict=True)))
            if isinstance(instrument, Gauge):
                instrument.value = spec.value

    def _family(self, spec: Spec) -> Family[Instrument]:
        create: Callable[[], Instrument] = Counter if spec.kind == "counter" else Gauge
        if spec.kind == "histogram":
            bounds = self._token_bounds if spec.bounds is None else spec.bounds
            create = partial(Histogram, bounds)
        return Family(spec.name, spec.help, create, kind=spec.kind, now=self._now)

    def _instrument(self, name: str, labels: Mapping[str, str]) -> Instrument:
        family = self.by_name.get(f"vllm:{name}") or self.by_name[name]
        return family.labels(**self._base[family.name], **labels)
