"""What can go wrong with a fleet."""

from __future__ import annotations


class FleetError(Exception):
    """A process that does not start or has ended, or an index that hears nothing; the text is one line."""


class IndexerError(Exception):
    """The indexer gave no scores: it cannot be reached, refused, or answered something else."""
