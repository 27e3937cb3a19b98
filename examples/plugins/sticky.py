"""A routing policy: requests with the same `user` go to the same pod, as consistent hashing has it.

python -m app fleet --plugin examples/plugins/sticky.py --policies sticky round-robin
"""

import hashlib
from collections.abc import Mapping, Sequence
from random import Random

import msgspec

from app.plugins import Incoming, PluginHost, PolicyMaker, Scores, hookimpl

API = 1
VERSION = "1.0"


class Sticky:
    """Without a `user` it goes by the beginning of the body."""

    fallbacks = 0

    def choose(self, incoming: Incoming, pods: Sequence[str], in_flight: Mapping[str, int]) -> str:
        try:
            key = str(msgspec.json.decode(incoming.body, type=dict[str, object])["user"]).encode()
        except (msgspec.MsgspecError, KeyError):
            key = incoming.body[:256]
        return max(pods, key=lambda pod: hashlib.sha256(key + pod.encode()).digest())


@hookimpl
def routing(host: PluginHost) -> Mapping[str, PolicyMaker]:
    def sticky(scores: Scores, rng: Random) -> Sticky:
        return Sticky()

    return {"sticky": sticky}
