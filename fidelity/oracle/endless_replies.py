"""The plugin of `endless_lengths`."""

from fidelity.oracle.endless_lengths import EndlessReplies

API = 2
EXTENSION = EndlessReplies
