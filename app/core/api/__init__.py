"""The HTTP surface: one blueprint per API family."""
