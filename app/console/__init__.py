"""A page to watch and steer a server, live; it costs nothing while nobody looks."""
