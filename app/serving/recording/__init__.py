"""Recordings: request, answer and timing of each exchange with a server, for replay and scripts."""
