"""What several extensions use, and no server needs without them: clients of HTTP, and relays."""
