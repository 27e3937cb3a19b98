"""Changes of releases in tiers of CPU blocks."""
