"""What goes wrong on purpose, and how clients bear it."""
