"""The engine: schedules requests, and generates replies."""
