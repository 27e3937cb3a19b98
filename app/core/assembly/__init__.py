"""Builds the parts of a server, one module for each group of parts."""
