"""The command that checks command lines of vLLM, and files of clusters, before they are used."""
