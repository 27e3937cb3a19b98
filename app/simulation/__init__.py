"""What to say and when to say it: the simulated performer."""
