"""Simulation off line, calibration, fleets and loads."""
