"""Scripts made of the fixtures of other tools: `understudy script import FILE`.

Start with `command`. Each other module reads one format, and returns an `ImportedScript`.
"""
