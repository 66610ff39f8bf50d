"""The one way in, above every transport: what clients ask is checked, tokenized and queued."""
