"""What builds what."""
