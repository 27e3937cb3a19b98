"""HTTP/2 as gRPC uses it, in the hub of a worker: no greenlet and no system call for a message."""
