"""Drills of a fleet: failures of pods on a schedule, behind any router, and a score."""
