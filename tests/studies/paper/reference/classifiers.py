"""What FashionMNIST and Letter share: the loss, heads with rates of their own, and rates that follow test losses."""

from abc import ABC, abstractmethod

import numpy as np

from .common import SGD, Plateau, total, weighted


def softmax(u):
    powers = np.exp(u - u.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def double_softmax(u, c):
    """Cross-entropy of p = softmax(u) taken as logits, for labels c: the mean over rows, and its gradient in u."""
    p, own = softmax(u), np.eye(2)[c]
    loss = np.mean(np.log(np.exp(p).sum(axis=1)) - (own * p).sum(axis=1))
    in_p = (softmax(p) - own) / len(c)
    return loss, p * (in_p - (p * in_p).sum(axis=1, keepdims=True))


class Classifiers(ABC):
    """Heads (w_i, b_i) of two logits on shared features.

    A loss is its value, its gradients in x's arrays, and those in (w_i, b_i).
    """

    def __init__(self, w, b, minmax, alpha, beta, gamma, momentum, decay, every, patience, factor, test):
        self.w, self.b, self.minmax = np.array(w, float), np.array(b, float), minmax
        self.tasks = range(len(w))
        self.weights = np.full(len(w), 1 / len(w))
        self.x_rule = SGD(alpha, momentum, decay)
        self.head_rules = [SGD(beta, momentum, decay) for _ in self.tasks]
        self.weights_rule = SGD(gamma, momentum, decay)
        self.x_plateau = Plateau(self.x_rule, patience, factor)
        self.head_plateaus = [Plateau(rule, patience, factor) for rule in self.head_rules]
        self.weights_plateau = Plateau(self.weights_rule, patience, factor)
        self.every, self.test, self.steps = every, test, 0

    @abstractmethod
    def loss(self, i, a, c) -> tuple[float, list, list]:
        """Task i's loss on rows a with labels c."""

    @abstractmethod
    def lower(self, i, a, c) -> tuple[float, list, list]:
        """The same with the lower level's penalty."""

    @property
    def rates(self):
        """x's, the heads' and the weights'."""
        return self.x_rule.rate, np.array([rule.rate for rule in self.head_rules]), self.weights_rule.rate

    def fit_heads(self, batches):
        """Step 1: one move of every head a batch; the lower gradients in x, summed over tasks and batches."""
        gradients = []
        for a, c in batches:
            for i in self.tasks:
                _, in_x, in_head = self.lower(i, a[i], c[i])
                gradients.append(in_x)
                self.w[i], self.b[i] = self.head_rules[i].step([self.w[i], self.b[i]], in_head)
        return total(gradients)

    def upper_losses(self, batch):
        """Step 2: every f_i, and grad_x sum_i lambda_i f_i."""
        a, c = batch
        values, gradients, _ = zip(*(self.loss(i, a[i], c[i]) for i in self.tasks), strict=True)
        return np.array(values), weighted(self.weights, gradients)

    def test_losses(self):
        a, c = self.test
        return np.array([self.loss(i, a[i], c[i])[0] for i in self.tasks])

    def lower_rates(self, tests, metric):
        """Step 5, when due: heads by their own test losses, x and the weights by the metric."""
        for plateau, tested in zip(self.head_plateaus, tests, strict=True):
            plateau.step(tested)
        self.x_plateau.step(metric)
        if self.minmax:
            self.weights_plateau.step(metric)
