"""The workers that read prompts: chunked prefill, and the sending side of hand-offs."""
