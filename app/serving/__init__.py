"""Admission, places, and the life of a generation."""
