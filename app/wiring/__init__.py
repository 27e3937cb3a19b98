"""Factories: build the app, its engine and its index."""
