"""One engine each: a program that runs inside that engine's environment and knows nothing of Twinpool."""
