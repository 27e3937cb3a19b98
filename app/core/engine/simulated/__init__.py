"""The simulated model: decides the content of replies."""
