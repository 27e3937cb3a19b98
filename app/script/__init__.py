"""Scripted replies: which request is answered with what, as YAML files say it (docs/scripts.md).

`rules` is the language, `reading` reads a file, `matching` and `templates` are what its two halves do,
`book` has the rules of a server at work, `watch` reads changed files again, `command` tries a script.
"""
