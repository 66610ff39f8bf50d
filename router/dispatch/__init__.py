"""Drives the scheduler: events in, commands out, streams and sessions at its sides."""
