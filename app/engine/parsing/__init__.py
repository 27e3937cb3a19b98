"""Parses a computing model's text into thoughts, tool calls and the reply's own text."""
