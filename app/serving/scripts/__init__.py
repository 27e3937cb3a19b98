"""Scripted replies: YAML rules that match a request and give its answer (docs/scripts.md).

`rules` defines the language, and `reader` reads a file. `matching` evaluates `when`, `action` fills
`then`. `script_set` holds a server's scripts and reloads changed files. `command` tries a script
without a server.
"""
