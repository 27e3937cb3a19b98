"""A live page to watch and steer a server; without open pages the server has no extra work."""
