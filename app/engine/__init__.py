"""The engine: who runs when, and what a reply holds."""
