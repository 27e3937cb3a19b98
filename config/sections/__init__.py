"""Sections of the settings; `config.settings` combines them."""
