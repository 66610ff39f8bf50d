"""The command line, and the composition root that puts a whole system together."""
