"""Time and randomness: clocks, the timer wheel, token buckets, random streams."""
