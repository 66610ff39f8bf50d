"""The router: takes prompts, composes batches, streams tokens back."""
