"""Scripts made of the fixtures of other tools: `python -m app script import FILE`.

Start with `command`. Each other module reads one format, and returns an `ImportedScript`.
"""
