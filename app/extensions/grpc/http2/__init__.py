"""HTTP/2 for gRPC, in a worker's hub: no greenlet and no system call per message."""
