"""The five VR optimizers in plain numpy (float64), from the gradients of k groups. Shares no line with the package."""

import numpy as np


def multiplier(groups, gamma=0.1, upper=1.0, cap=1e4):
    """Of one layer: groups [k, ...] -> the clipped ratio of the squared mean to the variance, over its mean in the layer."""
    mean = groups.mean(axis=0)
    deviation = ((groups - mean) ** 2).mean(axis=0)
    ratio = np.zeros_like(mean)
    for index in np.ndindex(mean.shape):
        if mean[index] != 0:
            ratio[index] = cap if mean[index] ** 2 >= cap * deviation[index] else mean[index] ** 2 / deviation[index]
    return np.clip(ratio / ratio.mean(), gamma, upper)


class Layer:
    """One weight array and its state; a step takes the gradients of the groups [k, ...]."""

    def __init__(self, weight, lr, decay=0.0, gamma=0.1):
        self.w, self.lr, self.decay, self.gamma = np.array(weight, "float64"), lr, decay, gamma
        self.velocity = self.first = self.second = self.ratio = np.zeros_like(self.w)
        self.t = 0

    def sgd(self, groups):
        self.w = self.w - self.lr * multiplier(groups, self.gamma) * groups.mean(axis=0)

    def momentum(self, groups, mu=0.9):
        gradient = multiplier(groups, self.gamma) * groups.mean(axis=0) + self.decay * self.w
        self.velocity = mu * self.velocity + gradient
        self.w = self.w - self.lr * self.velocity

    def lars(self, groups, mu=0.9, eta=1e-3):
        gradient = multiplier(groups, self.gamma) * groups.mean(axis=0)
        weight_norm, gradient_norm = np.sqrt((self.w**2).sum()), np.sqrt((gradient**2).sum())
        trust = 1.0
        if weight_norm > 0 and gradient_norm > 0:
            trust = eta * weight_norm / (gradient_norm + self.decay * weight_norm)
        self.velocity = mu * self.velocity + self.lr * trust * (gradient + self.decay * self.w)
        self.w = self.w - self.velocity

    def _direction(self, groups, epsilon, raw_second):
        self.t += 1
        self.ratio = 0.9 * self.ratio + 0.1 * multiplier(groups, self.gamma)
        mean = groups.mean(axis=0)
        gradient = self.ratio / (1 - 0.9**self.t) * mean
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.999 * self.second + 0.001 * (mean if raw_second else gradient) ** 2
        return (self.first / (1 - 0.9**self.t)) / (np.sqrt(self.second / (1 - 0.999**self.t)) + epsilon)

    def adam(self, groups, epsilon=1e-8, raw_second=False):
        self.w = self.w - self.lr * (self._direction(groups, epsilon, raw_second) + self.decay * self.w)

    def lamb(self, groups, epsilon=1e-6, raw_second=False):
        step = self._direction(groups, epsilon, raw_second) + self.decay * self.w
        weight_norm, step_norm = np.sqrt((self.w**2).sum()), np.sqrt((step**2).sum())
        trust = weight_norm / step_norm if weight_norm > 0 and step_norm > 0 else 1.0
        self.w = self.w - self.lr * trust * step
