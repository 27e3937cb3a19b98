"""Scripted replies: YAML rules that match a request and give its answer (docs/scripts.md).

`rules` defines the language and reads a file. `matching` evaluates `when`, `action` fills `then`.
`script_set` holds a server's scripts and reads changed files again. `command` tries a script
without a server.
"""
