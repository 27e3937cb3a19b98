"""One HTTP exchange: request context, body, connection, response, event stream, errors."""
