"""`plan --together`: several models, each with a load, on one fleet of one kind of device."""

from collections.abc import Mapping
from typing import NamedTuple

from workbench.load.tables import markdown
from workbench.plan.fleets import PlannedFleet
from workbench.plan.search import FleetSearch


class SharedFleet(NamedTuple):
    """The pods of all models on devices of one price list."""

    label: str
    fleets: list[PlannedFleet]
    """One for each model."""

    @property
    def devices(self) -> int:
        """Devices in use."""
        return sum(fleet.devices for fleet in self.fleets)

    @property
    def rented(self) -> int:
        """Devices that are paid for; models share nodes."""
        return self.fleets[0].engine.job.rented(self.devices)

    @property
    def price(self) -> float:
        """Price of the fleet, an hour."""
        judgement = self.fleets[0].engine.job.judgement
        return (judgement.gpu_hour_price or 0.0) * self.rented


def shared_fleets(searches: Mapping[str, FleetSearch]) -> list[SharedFleet]:
    """Returns the fleets on which all models meet the SLO, the cheapest first."""
    labels: dict[str, None] = {}
    for search in searches.values():
        for group in search.groups:
            labels.setdefault(group.name.partition(" ")[0])
    fleets = []
    for label in labels:
        choices = [_smallest(search, label) for search in searches.values()]
        complete = [fleet for fleet in choices if fleet is not None]
        if len(complete) == len(searches):
            fleets.append(SharedFleet(label, complete))
    return sorted(fleets, key=_price)


def _smallest(search: FleetSearch, label: str) -> PlannedFleet | None:
    """Returns the fleet of a load with the fewest devices of a price list, if any."""
    fleets = []
    for group in search.groups:
        fleet = group.best()
        if fleet is not None and fleet.engine.device == label:
            fleets.append(fleet)
    return min(fleets, key=_devices, default=None)


def _devices(fleet: PlannedFleet) -> int:
    return fleet.devices


def _price(fleet: SharedFleet) -> float:
    return fleet.price


def shared_headline(fleets: list[SharedFleet]) -> str:
    """Returns the verdict on the fleets as one sentence; the first one is the cheapest."""
    if not fleets:
        return "No device meets the limits of all models together"
    best = fleets[0]
    pods = ", ".join(str(part) for part in best.fleets)
    return f"Cheapest together: {pods}, {best.price:,.2f} per hour for {best.rented} devices"


def shared_table(fleets: list[SharedFleet]) -> str:
    """Returns a row for each fleet, as a Markdown table."""
    rows = [("together", "devices", "rented", "price/h")]
    for fleet in fleets:
        pods = ", ".join(str(part) for part in fleet.fleets)
        rows.append((pods, str(fleet.devices), str(fleet.rented), f"{fleet.price:,.2f}"))
    return markdown(rows)


def shared_figures(fleets: list[SharedFleet]) -> list[dict[str, object]]:
    """Returns the figures for `--json`."""
    return [
        {
            "device": fleet.label,
            "pods": [part.pods for part in fleet.fleets],
            "engines": [part.engine.name for part in fleet.fleets],
            "devices": fleet.devices,
            "rented_devices": fleet.rented,
            "price_per_hour": fleet.price,
        }
        for fleet in fleets
    ]
