"""Changes of releases in cache groups."""
