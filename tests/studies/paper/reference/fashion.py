"""FashionMNIST: a shared matrix W, features relu(a @ W), a head of two logits a task."""

import numpy as np

from .classifiers import Classifiers, double_softmax
from .common import onto_simplex, total


class Fashion(Classifiers):
    """x: W (inputs, hidden). y_i: w_i (hidden, 2), b_i (2,)."""

    def __init__(
        self, W, w, b, minmax, alpha, beta, gamma, lower_penalty, upper_penalty,
        *, momentum=0.9, decay=1e-4, every, patience, factor, test,
    ):  # fmt: skip
        super().__init__(w, b, minmax, alpha, beta, gamma, momentum, decay, every, patience, factor, test)
        self.W = np.array(W, float)
        self.lower_penalty, self.upper_penalty = lower_penalty, upper_penalty

    def step(self, lower, upper):
        # 1. The heads; the gradients in W of their losses are left over.
        left_over = self.fit_heads(lower)
        # 2. f_i at the old W and the new heads.
        losses, in_x = self.upper_losses(upper)
        # 3. W, by those gradients and that of its penalty.
        penalty = [2 * self.upper_penalty * self.W]
        (self.W,) = self.x_rule.step([self.W], total([left_over, in_x, penalty]))
        # 4. The weights.
        if self.minmax:
            (moved,) = self.weights_rule.step([self.weights], [-losses])
            self.weights = onto_simplex(moved)
        # 5. The rates, by test losses with W's penalty.
        self.steps += 1
        if self.steps % self.every == 0:
            tests = self.test_losses() + self.upper_penalty * np.sum(self.W**2)
            self.lower_rates(tests, self.weights @ tests if self.minmax else tests.sum())

    def loss(self, i, a, c):
        features = np.maximum(a @ self.W, 0)
        value, in_logits = double_softmax(features @ self.w[i] + self.b[i], c)
        in_features = (in_logits @ self.w[i].T) * (features > 0)
        return value, [a.T @ in_features], [features.T @ in_logits, in_logits.sum(axis=0)]

    def lower(self, i, a, c):
        value, in_x, (in_w, in_b) = self.loss(i, a, c)
        penalty = self.lower_penalty * np.sum(self.w[i] ** 2)
        return value + penalty, in_x, [in_w + 2 * self.lower_penalty * self.w[i], in_b]
