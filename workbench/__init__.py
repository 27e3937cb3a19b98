"""The offline commands and their parts. No server imports them (docs/architecture.md)."""
