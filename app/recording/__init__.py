"""Recordings: whole exchanges with a server, kept with their moments, and answers made of them."""
