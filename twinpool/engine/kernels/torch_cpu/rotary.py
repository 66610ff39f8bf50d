"""Rotary position embedding in halves: the first half of a head turns with the second."""

from __future__ import annotations

import torch
from torch import Tensor


class Rotary:
    """Rotates queries and keys by their positions (Su et al., "RoFormer").

    Angles, sines and cosines are float32 in every mode.
    """

    def __init__(self, head_dim: int, theta: float) -> None:
        exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        self._half = head_dim // 2
        self._frequencies = 1.0 / theta**exponents

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines for positions `[rows]`, each `[rows, 1, head_dim]` float32.

        The first half of a rotated vector takes minus its second half; the sign sits in the sines.
        """
        angles = torch.outer(positions.float(), self._frequencies)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((cos, cos), dim=-1).unsqueeze(1), torch.cat((-sin, sin), dim=-1).unsqueeze(1)

    def rotate_(self, x: Tensor, cos: Tensor, sin: Tensor) -> None:
        """Rotate x in place; `[rows, heads, head_dim]`, any strides."""
        wide = x.float()
        swapped = torch.cat((wide[..., self._half :], wide[..., : self._half]), dim=-1)
        x.copy_(wide.mul_(cos).addcmul_(swapped, sin))
