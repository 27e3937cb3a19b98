"""Offline simulation, and its calibration against real servers."""
