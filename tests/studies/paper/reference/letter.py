"""Letter: shared penalties C and bandwidths G of random features, a head of two logits a task."""

import numpy as np

from .classifiers import Classifiers, double_softmax
from .common import onto_simplex, total


class Letter(Classifiers):
    """x: C (2K,), G (d,). y_i: w_i (2K, 2), b_i (2,). R (d, K) is fixed."""

    def __init__(
        self, C, G, R, w, b, minmax, alpha, beta, gamma, pull, delta,
        *, momentum=0.9, every, patience, factor, test,
    ):  # fmt: skip
        super().__init__(w, b, minmax, alpha, beta, gamma, momentum, 0.0, every, patience, factor, test)
        self.C, self.G, self.R = np.array(C, float), np.array(G, float), np.array(R, float)
        self.pull, self.delta = pull, delta

    def step(self, lower, upper):
        n = len(self.weights)
        # 1. The heads; the gradients in x of their losses are left over.
        left_over = self.fit_heads(lower)
        # 2. f_i at the old x and the new heads.
        losses, in_x = self.upper_losses(upper)
        # 3. C and G, kept non-negative.
        self.C, self.G = self.x_rule.step([self.C, self.G], total([left_over, in_x]))
        self.C, self.G = np.maximum(self.C, 0), np.maximum(self.G, 0)
        # 4. The weights, pulled to 1/n and each at least delta / n.
        if self.minmax:
            descent = -losses + 2 * self.pull * (self.weights - 1 / n)
            (moved,) = self.weights_rule.step([self.weights], [descent])
            self.weights = onto_simplex(moved, 1 - self.delta) + self.delta / n
        # 5. The rates, by test losses.
        self.steps += 1
        if self.steps % self.every == 0:
            tests = self.test_losses()
            self.lower_rates(tests, self.weights @ tests)

    def loss(self, i, a, c):
        z = (self.G * a) @ self.R
        features = np.hstack([np.cos(z), np.sin(z)])
        value, in_logits = double_softmax(features @ self.w[i] + self.b[i], c)
        in_cos, in_sin = np.hsplit(in_logits @ self.w[i].T, 2)
        in_z = in_sin * np.cos(z) - in_cos * np.sin(z)
        in_G = np.sum(a * (in_z @ self.R.T), axis=0)
        return value, [np.zeros_like(self.C), in_G], [features.T @ in_logits, in_logits.sum(axis=0)]

    def lower(self, i, a, c):
        value, (in_C, in_G), (in_w, in_b) = self.loss(i, a, c)
        squares = np.sum(self.w[i] ** 2, axis=1)
        return value + self.C @ squares, [in_C + squares, in_G], [in_w + 2 * self.C[:, None] * self.w[i], in_b]
