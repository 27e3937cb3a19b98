"""Offline simulation, its calibration, fleets, loads and plans."""
