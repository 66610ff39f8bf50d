"""The engine both pools share: a Llama over a paged cache, its attention, its sampler."""
