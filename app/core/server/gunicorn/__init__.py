"""The server process: gunicorn with one worker per rank, ports, certificates, reload."""
