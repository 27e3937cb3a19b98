"""On-demand list prices of an hour of a device, for devices that are named without a price.

Other providers ask less than half, and long terms or spot capacity cost less. A price of your own
goes before: `--device h100=2.50`.
"""

from collections.abc import Mapping

from msgspec import Struct

LIST_DATE = "2026-09-18"
"""Day on which AWS published the price feed."""
SOURCE = "AWS EC2, Linux on demand, us-east-1 (aws.amazon.com/ec2/pricing/on-demand)"


class ListPrice(Struct, frozen=True):
    """Price of a device for an hour: that of the server, divided by its devices."""

    server_price: float
    """Dollars per hour of the server."""
    devices: int
    """Devices of the server."""
    server: str

    @property
    def price(self) -> float:
        """Dollars per hour of a device."""
        return round(self.server_price / self.devices, 4)


LIST_PRICES: Mapping[str, ListPrice] = {
    "h100": ListPrice(55.04, 8, "p5.48xlarge"),
    "h200": ListPrice(63.296, 8, "p5en.48xlarge"),
    "b200": ListPrice(113.9328, 8, "p6-b200.48xlarge"),
    "b300": ListPrice(142.416, 8, "p6-b300.48xlarge"),
    "l40s": ListPrice(1.861, 1, "g6e.xlarge"),
}
"""Devices whose price in the feed of that day is known."""


def list_price_figures(devices: list[str]) -> dict[str, object]:
    """Returns the list prices that a result uses, with their date and sources."""
    return {
        "date": LIST_DATE,
        "source": SOURCE,
        "prices": {
            name: {
                "price": LIST_PRICES[name].price,
                "server": LIST_PRICES[name].server,
            }
            for name in devices
        },
    }


def list_price_line(devices: list[str]) -> str:
    """Returns the line about the list prices that a result uses."""
    prices = ", ".join(
        f"{name} {LIST_PRICES[name].price:.2f} ({LIST_PRICES[name].server})" for name in devices
    )
    return (
        f"AWS list prices of {LIST_DATE}, dollars per hour on demand: {prices}; yours may be far"
        f" lower: --device {devices[0]}=PRICE"
    )
