"""The KV cache: who owns which block (pure), how blocks are laid out, and the tensor they lie in."""
