"""A model as files: where they lie, what they say, and text in and out by them; free of torch."""
