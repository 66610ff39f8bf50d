"""Continuous batching over both pools, as pure logic: events in, commands and happenings out."""
