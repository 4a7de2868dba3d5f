"""Rules that move points, the rule that lowers rates, sums of gradients, and the projection onto the simplex."""

import numpy as np


def weighted(weights, gradients):
    """sum_i weights_i gradients_i, where each gradient is a list of arrays."""
    return [sum(w * g for w, g in zip(weights, arrays, strict=True)) for arrays in zip(*gradients, strict=True)]


def total(gradients):
    return weighted(np.ones(len(gradients)), gradients)


def onto_simplex(v, total=1.0):
    """The nearest point of {p >= 0, sum p = total}: max(v - shift, 0).

    Of every set S, sum_S (v - shift) <= total, with equality for the entries that stay positive; so the shift is the
    largest of (sum_S v - total) / |S|, and for each |S| the largest entries are the best S.
    """
    largest = np.sort(v)[::-1]
    shift = np.max((np.cumsum(largest) - total) / np.arange(1, len(v) + 1))
    return np.maximum(v - shift, 0)


class SGD:
    """Momentum with weight decay: d = gradient + decay p; buffer = d at first, then momentum buffer + d."""

    def __init__(self, rate, momentum=0.0, decay=0.0):
        self.rate, self.momentum, self.decay = rate, momentum, decay
        self.buffers = None

    def step(self, points, gradients):
        moves = [g + self.decay * p for p, g in zip(points, gradients, strict=True)]
        if self.buffers is not None:
            moves = [self.momentum * old + d for old, d in zip(self.buffers, moves, strict=True)]
        self.buffers = moves
        return [p - self.rate * d for p, d in zip(points, moves, strict=True)]


class Adam:
    """m = .9 m + .1 g, v = .999 v + .001 g^2, both divided by what they sum to so far."""

    def __init__(self, rate):
        self.rate, self.steps = rate, 0
        self.means, self.squares = None, None

    def step(self, points, gradients):
        self.steps += 1
        means = self.means or [np.zeros_like(g) for g in gradients]
        squares = self.squares or [np.zeros_like(g) for g in gradients]
        self.means = [0.9 * m + 0.1 * g for m, g in zip(means, gradients, strict=True)]
        self.squares = [0.999 * v + 0.001 * g**2 for v, g in zip(squares, gradients, strict=True)]
        return [
            p - self.rate * (m / (1 - 0.9**self.steps)) / (np.sqrt(v / (1 - 0.999**self.steps)) + 1e-8)
            for p, m, v in zip(points, self.means, self.squares, strict=True)
        ]


class Plateau:
    """Lowers a rule's rate by a factor when a metric has not improved more than `patience` times in a row."""

    def __init__(self, rule, patience, factor):
        self.rule, self.patience, self.factor = rule, patience, factor
        self.best, self.bad = np.inf, 0

    def step(self, metric):
        if metric < self.best * (1 - 1e-4):
            self.best, self.bad = metric, 0
        else:
            self.bad += 1
        if self.bad > self.patience:
            lower = self.rule.rate * self.factor
            if self.rule.rate - lower > 1e-8:
                self.rule.rate = lower
            self.bad = 0
