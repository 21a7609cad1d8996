"""Adam with decoupled weight decay and a cap on the gradient's norm, as SkyRL's AdamW is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]


@dataclass
class Adam:
    """State of the optimizer: first and second moments by name, and the number of steps taken."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    steps: int = 0
    first: dict[str, Floats] = field(default_factory=dict)
    second: dict[str, Floats] = field(default_factory=dict)

    def update(self, weights: Mapping[str, Floats], gradient: Mapping[str, Floats]) -> tuple[dict[str, Floats], float]:
        """One step down the gradient.

        Returns:
            the new weights of the gradient's names, and the gradient's norm before the cap.
        """
        norm = float(np.sqrt(sum(float((slope.astype(np.float64) ** 2).sum()) for slope in gradient.values())))
        factor = min(1.0, self.max_grad_norm / (norm + 1e-6))
        self.steps += 1
        beta1, beta2 = self.betas
        updated: dict[str, Floats] = {}
        for name in sorted(gradient):
            slope = gradient[name] * np.float32(factor)
            self.first[name] = beta1 * self.first.get(name, np.zeros_like(slope)) + (1 - beta1) * slope
            self.second[name] = beta2 * self.second.get(name, np.zeros_like(slope)) + (1 - beta2) * slope * slope
            mean = self.first[name] / (1 - beta1**self.steps)
            spread = np.sqrt(self.second[name] / (1 - beta2**self.steps))
            decayed = weights[name] * (1 - self.lr * self.weight_decay)
            updated[name] = (decayed - self.lr * mean / (spread + 1e-8)).astype(weights[name].dtype)
        return updated, norm
