"""Slow, obviously right answers in plain numpy (float64). Shares no line with the package."""

import itertools
import math

import numpy as np


def cosine(a, b):
    """Cosine of the angle between two vectors."""
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def cosine_of_groups(examples_a, examples_b):
    """Cosine of the mean gradients of two groups, from per-example gradients [n, d]."""
    return cosine(examples_a.mean(axis=0), examples_b.mean(axis=0))


def squared_norm_from_pairs(examples_a, examples_b):
    """Unbiased |G|^2 from two groups: the mean inner product over all pairs of an example of A and one of B.

    The two examples of a pair are independent, so each product has the expectation G.G.
    """
    return float(np.mean([x @ y for x in examples_a for y in examples_b]))


def trace_from_two_groups(examples_a, examples_b):
    """Unbiased tr(Sigma) from two groups: E|gA - gB|^2 = tr(Sigma) (1/nA + 1/nB)."""
    difference = examples_a.mean(axis=0) - examples_b.mean(axis=0)
    return float(difference @ difference / (1 / len(examples_a) + 1 / len(examples_b)))


def trace_from_micro_batches(micro_batches):
    """Unbiased tr(Sigma) from K micro-batches [n_i, d]: their means' weighted sum of squares about the whole, over K - 1."""
    whole = np.concatenate(micro_batches).mean(axis=0)
    squares = [len(batch) * np.sum((batch.mean(axis=0) - whole) ** 2) for batch in micro_batches]
    return float(np.sum(squares) / (len(micro_batches) - 1))


def squared_norm_from_micro_batches(micro_batches):
    """Unbiased |G|^2 from K micro-batches: E|m|^2 = |G|^2 + tr(Sigma)/B."""
    examples = np.concatenate(micro_batches)
    whole = examples.mean(axis=0)
    return float(whole @ whole - trace_from_micro_batches(micro_batches) / len(examples))


def half_splits(count):
    """Every way to part ``count`` (even) things into two ordered halves."""
    for chosen in itertools.combinations(range(count), count // 2):
        yield list(chosen), [i for i in range(count) if i not in chosen]


def expected_split_moments(gradients):
    """Over all splits of the equally weighted gradients [K, d] into halves: the mean of gA.gB, and of |gA|^2."""
    dots, squares = [], []
    for a, b in half_splits(len(gradients)):
        mean_a, mean_b = gradients[a].mean(axis=0), gradients[b].mean(axis=0)
        dots.append(mean_a @ mean_b)
        squares.append(mean_a @ mean_a)
    return float(np.mean(dots)), float(np.mean(squares))


def random_split_cosines(gradients, splits, rng):
    """Cosines of the two halves of the equally weighted gradients [K, d], over random splits."""
    half = len(gradients) // 2
    orders = [rng.permutation(len(gradients)) for _ in range(splits)]
    return np.array([cosine_of_groups(gradients[order[:half]], gradients[order[half:]]) for order in orders])


def cosine_at(noise_scale, examples_a, examples_b):
    """What two groups show in expectation: 1 / sqrt((1 + r/nA) (1 + r/nB))."""
    return 1 / math.sqrt((1 + noise_scale / examples_a) * (1 + noise_scale / examples_b))


def noise_scale_of(cosine_value, examples_a, examples_b):
    """The noise scale at which two groups show that cosine, in (0, 1): bisection, as the cosine falls with the noise."""
    low, high = 0.0, 1.0
    while cosine_at(high, examples_a, examples_b) > cosine_value:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if cosine_at(middle, examples_a, examples_b) > cosine_value:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def equal_halves(cosine_value, examples_a, examples_b):
    """The cosine that halves of the same total would show; odd in the cosine, as a negative one has no noise scale."""
    if cosine_value in (0, 1, -1):
        return float(cosine_value)
    half = (examples_a + examples_b) / 2
    noise = noise_scale_of(abs(cosine_value), examples_a, examples_b)
    return math.copysign(cosine_at(noise, half, half), cosine_value)


def cosine_spread(noise_scale, batch_size, dimensions):
    """Standard deviation of the cosine of two gaussian halves, Sigma a multiple of the identity, to first order in 1/d.

    With |G| = 1 and s = noise in each half's mean = 2 noise_scale / batch_size, gA = G + a, gB = G + b and c = 1 / (1 + s):
    d cos / c = d(gA.gB) - c/2 (d|gA|^2 + d|gB|^2), of which d Var(gA.gB) = 2s + s^2, d Var|g|^2 = 4s + 2s^2 and
    d Cov(gA.gB, |g|^2) = 2s. Where noise dominates this is 1/sqrt(d), the noise floor.
    """
    s = 2 * noise_scale / batch_size
    c = 1 / (1 + s)
    return c * math.sqrt(((2 * s + s * s) * (1 + c * c) - 4 * c * s) / dimensions)


def published_rule(batch_size, similarity, target, low, high):
    """SimiGrad's rule, in whole numbers: a tenth up or down, by one at least, then the bounds."""
    if similarity is None or not math.isfinite(similarity):
        return batch_size
    if similarity < target:
        batch_size = max(batch_size + 1, 11 * batch_size // 10)
    elif similarity > target:
        batch_size = min(batch_size - 1, 9 * batch_size // 10)
    return max(low, min(high, batch_size))


def moving_average(values, decay):
    """Bias-corrected exponential moving average: the k-th latest value weighs decay^k, over the sum of the weights."""
    weights = [decay**age for age in reversed(range(len(values)))]
    return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)


def adascale_gain(batch_size, reference_batch_size, noise_scale):
    """AdaScale's gain (sigma^2 + mu^2) / (sigma^2 / S + mu^2) at scale S; mu^2 = 1, sigma^2 is that of the reference batch."""
    variance = noise_scale / reference_batch_size
    scale = batch_size / reference_batch_size
    return (variance + 1) / (variance / scale + 1)


def nearest_feasible(wanted, unit, low, high, min_steps):
    """The multiple of the unit within the bounds nearest to the wanted size, the larger of two; None if there is none."""
    sizes = [k * unit for k in range(min_steps, high // unit + 1) if low <= k * unit <= high]
    return min(sizes, key=lambda size: (abs(size - wanted), -size), default=None)


def gaussian_group_means(noise_scale, examples, dimensions, rng):
    """Mean gradients of groups of that many examples each, one row a group: G = (1, 0, ...), tr(Sigma) = noise_scale."""
    means = rng.normal(size=(len(examples), dimensions))
    means *= np.sqrt(noise_scale / dimensions / np.asarray(examples, float))[:, None]
    means[:, 0] += 1.0
    return means


def scale_of_layer(numerator, denominator, norms, bounds):
    """A layer's trust ratio: the quotient, or 1 if one of the norms is 0; moved into the bounds, if there are any."""
    scale = 1.0 if min(norms) == 0 else numerator / denominator
    return scale if bounds is None else min(max(scale, bounds[0]), bounds[1])


def lars_weights(
    start, gradients, rates, *, momentum=0.9, decay=0.0, trust=1e-3, epsilon=0.0, nesterov=False, bounds=None, adapted=True
):
    """One layer's weights after LARS (arXiv 1708.03888, algorithm 1) has taken a step for each gradient."""
    w, v = np.array(start, np.float64), 0.0
    for g, rate in zip(gradients, rates, strict=True):
        g = np.asarray(g, np.float64)
        w_norm, g_norm = math.sqrt((w * w).sum()), math.sqrt((g * g).sum())
        scale = 1.0
        if adapted:
            scale = scale_of_layer(trust * w_norm, g_norm + decay * w_norm + epsilon, (w_norm, g_norm), bounds)
        step = rate * scale * (g + decay * w)
        v = momentum * v + step
        w = w - (momentum * v + step if nesterov else v)
    return w


def lamb_weights(
    start, gradients, rates, *, beta_1=0.9, beta_2=0.999, epsilon=1e-6, decay=0.0, bounds=None, adapted=True
):
    """One layer's weights after LAMB (arXiv 1904.00962, algorithm 2) has taken a step for each; not adapted it is AdamW."""
    w, m, v = np.array(start, np.float64), 0.0, 0.0
    for t, (g, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        g = np.asarray(g, np.float64)
        m, v = m * beta_1 + g * (1 - beta_1), v * beta_2 + g * g * (1 - beta_2)
        r = (m / (1 - beta_1**t)) / (np.sqrt(v / (1 - beta_2**t)) + epsilon) + decay * w
        w_norm, r_norm = math.sqrt((w * w).sum()), math.sqrt((r * r).sum())
        w = w - rate * (scale_of_layer(w_norm, r_norm, (w_norm, r_norm), bounds) if adapted else 1.0) * r
    return w
