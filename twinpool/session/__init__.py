"""What the router and its workers say to each other, and the session over which they say it."""
