"""The gRPC services that clients call."""
