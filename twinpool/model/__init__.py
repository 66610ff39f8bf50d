"""Models before the engine: fetching, converting, describing and tokenizing them."""
