"""Simulation off line, and how near it comes to the real thing."""
