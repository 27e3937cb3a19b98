"""Failures on purpose, and an audit of clients that meet them."""
