"""Power of devices that was measured on servers of vLLM.

The ranges come from public measurements of June 2026 (api.serialalice.pt/alice-benchmark): eight
models on H100, six on B200, two on H200.
"""

from collections.abc import Mapping

from app.extensions.costs.power import DeviceWatts

MEASURED: Mapping[str, DeviceWatts] = {
    "h100": DeviceWatts(low_w=267, high_w=680),
    "h200": DeviceWatts(low_w=267, high_w=662),  # one request was not measured: as H100
    "b200": DeviceWatts(low_w=452, high_w=943),
}
