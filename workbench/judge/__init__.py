"""Compares the report of a load tool with the server's journal; start with `command`."""
