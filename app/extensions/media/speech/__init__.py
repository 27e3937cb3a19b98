"""Texts of sounds: /v1/audio/transcriptions and /v1/audio/translations, for speech models."""
