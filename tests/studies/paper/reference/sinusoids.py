"""Sinusoid regression: a shared network of three layers, a linear head a task."""

import numpy as np

from .common import SGD, Adam, onto_simplex, weighted

LOWER_STEPS = 2
LOWER_PENALTY = 0.01


class Sinusoids:
    """x: the layers' (W, bias), rectified but for the last. y_i: w_i, b_i with prediction features @ w_i + b_i."""

    def __init__(self, x, w, b, minmax, alpha, beta, gamma, pull=3.0):
        self.x = [(np.array(W, float), np.array(bias, float)) for W, bias in x]
        self.w, self.b, self.minmax = np.array(w, float), np.array(b, float), minmax
        self.weights = np.full(len(w), 1 / len(w))
        self.gamma, self.pull = gamma, pull
        self.x_rule = SGD(alpha)
        self.head_rules = [Adam(beta) for _ in w]

    def step(self, lower, upper):
        n = len(self.weights)
        # 1. Two steps of Adam of every head, on one batch; the norms are not squared.
        for i, (a, t) in enumerate(zip(*lower, strict=True)):
            for _ in range(LOWER_STEPS):
                _, _, (in_w, in_b) = self.loss(i, a, t)
                in_w = in_w + LOWER_PENALTY * self.w[i] / (np.linalg.norm(self.w[i]) or 1)
                in_b = in_b + LOWER_PENALTY * np.sign(self.b[i])
                self.w[i], self.b[i] = self.head_rules[i].step([self.w[i], self.b[i]], [in_w, in_b])
        # 2. f_i at the old x and the new heads.
        tasks = [self.loss(i, a, t) for i, (a, t) in enumerate(zip(*upper, strict=True))]
        losses, gradients, _ = zip(*tasks, strict=True)
        # 3. x by the direct gradient of the weighted loss.
        arrays = [array for layer in self.x for array in layer]
        arrays = self.x_rule.step(arrays, weighted(self.weights, gradients))
        self.x = list(zip(arrays[::2], arrays[1::2], strict=True))
        # 4. The weights, pulled to 1/n.
        if self.minmax:
            ascent = np.array(losses) - self.pull * (self.weights - 1 / n)
            self.weights = onto_simplex(self.weights + self.gamma * ascent)

    def loss(self, i, a, t):
        """Task i's mean squared error, its gradients in x (W, bias, W, bias, ...), and those in (w_i, b_i)."""
        given = [a[:, None]]  # what each layer is given, and at last the features
        for k, (W, bias) in enumerate(self.x, start=1):
            out = given[-1] @ W + bias
            given.append(np.maximum(out, 0) if k < len(self.x) else out)
        features = given.pop()
        error = features @ self.w[i] + self.b[i] - t
        in_prediction = 2 * error / len(t)
        in_out, in_x = np.outer(in_prediction, self.w[i]), []
        for (W, _), inputs in zip(self.x[::-1], given[::-1], strict=True):
            in_x = [inputs.T @ in_out, in_out.sum(axis=0), *in_x]
            in_out = (in_out @ W.T) * (inputs > 0)
        return np.mean(error**2), in_x, [features.T @ in_prediction, in_prediction.sum()]
