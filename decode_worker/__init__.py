"""The workers that write answers: the decode batch, reservations, and the receiving side of hand-offs."""
