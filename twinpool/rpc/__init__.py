"""The session between the router and its workers."""
