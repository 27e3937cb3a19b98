"""Injected failures, and an audit of the clients that meet them."""
