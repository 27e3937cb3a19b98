"""The simulated model: what is said."""
