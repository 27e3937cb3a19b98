"""Parts for several extensions that no server needs without them: clients of HTTP, and relays."""
