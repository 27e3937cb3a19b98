"""The interface between the workbench and the engine of a server."""
