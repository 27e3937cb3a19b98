"""Requests as they come over the wire: their fields and rules, and the errors for those that break them."""
