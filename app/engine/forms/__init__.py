"""Texts of a form: JSON of a schema, patterns, grammars."""
