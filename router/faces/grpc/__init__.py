"""The gRPC face: services, boundary, codecs and the rich errors that go with them."""
