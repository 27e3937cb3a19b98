"""The settings, section by section; `config.settings` puts them together."""
