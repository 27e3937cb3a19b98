"""`understudy fleet`: servers, an indexer and a proxy on one machine, to compare policies."""
