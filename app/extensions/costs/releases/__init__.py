"""Changes of releases in the steps and the memory of servers."""
