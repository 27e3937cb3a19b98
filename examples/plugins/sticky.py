"""A routing policy: requests with the same `user` go to the same pod, by consistent hashing.

understudy fleet --plugin examples/plugins/sticky.py --policies sticky round-robin
"""

import hashlib
from collections.abc import Mapping, Sequence
from random import Random

import msgspec

from app.plugins import Incoming, Plugin, PolicyMaker, Scores

API = 2
VERSION = "1.0"
KEY_BYTES = 256
"""Bytes of the body that decide about a request without a `user`."""


class StickyPolicy:
    """Chooses the pod with the highest hash of the user and the pod."""

    fallbacks = 0

    def choose(self, incoming: Incoming, pods: Sequence[str], in_flight: Mapping[str, int]) -> str:
        """Returns the pod of a request."""
        try:
            key = str(msgspec.json.decode(incoming.body, type=dict[str, object])["user"]).encode()
        except (msgspec.MsgspecError, KeyError):
            key = incoming.body[:KEY_BYTES]

        def weight(pod: str) -> bytes:
            return hashlib.sha256(key + pod.encode()).digest()

        return max(pods, key=weight)


def make_policy(scores: Scores, rng: Random) -> StickyPolicy:
    """Returns the policy, which needs neither scores of pods nor chance."""
    return StickyPolicy()


class Sticky(Plugin):
    """Adds the routing policy `sticky`."""

    name = "sticky"

    def routing_policies(self) -> Mapping[str, PolicyMaker]:
        """Returns the policy."""
        return {"sticky": make_policy}


EXTENSION = Sticky
