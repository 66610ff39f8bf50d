"""The transports that clients speak, each a face of the entrance."""
