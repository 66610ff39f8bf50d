"""The only place, servicers aside, where the client services' protobuf messages are known."""
