"""The settings, room by room; `config.settings` puts them together."""
