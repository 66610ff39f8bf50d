"""The composition root: a whole system put together, on a Ray cluster of its own or one it joins."""
