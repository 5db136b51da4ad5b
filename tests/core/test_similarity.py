"""Similarity and noise scale from moments, against per-example gradients, bisection, enumeration and simulation."""

import itertools
import math

import numpy as np
import pytest

from tests import oracles
from tf_simigrad.core import similarity
from tf_simigrad.records import Moments

pytestmark = [pytest.mark.one_keras, pytest.mark.usefixtures("tf")]

DIMENSIONS = 40
# Float32 moments are good to 6e-8 each. The trace is their difference, which in these cases is a fiftieth of them or more,
# so that it is good to 50 * 4 * 6e-8.
RELATIVE = 1.5e-5


def examples_of(count, seed=0, signal=1.0):
    """Per-example gradients [count, DIMENSIONS] with a common mean of norm ``signal`` and tr(Sigma) of about DIMENSIONS."""
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=DIMENSIONS)
    return signal * mean / np.linalg.norm(mean) + rng.normal(size=(count, DIMENSIONS))


def split(examples, sizes):
    return np.split(examples, np.cumsum(sizes)[:-1])


def moments(tf, batches_a, batches_b, units=1.0):
    """Moments in float32 of two groups of micro-batches [n_i, d]; each example weighs ``units``."""
    micro = [*batches_a, *batches_b]
    a, b = np.concatenate(batches_a).mean(axis=0), np.concatenate(batches_b).mean(axis=0)
    whole = np.concatenate(micro).mean(axis=0)
    values = Moments(
        dot=a @ b,
        squared_norm_a=a @ a,
        squared_norm_b=b @ b,
        weight_a=units * sum(map(len, batches_a)),
        weight_b=units * sum(map(len, batches_b)),
        squared_norm=whole @ whole,
        weighted_squared_norms=sum(units * len(g) * np.sum(g.mean(axis=0) ** 2) for g in micro),
        micro_gradients=len(micro),
        examples=sum(map(len, micro)),
    )
    return Moments(*(tf.constant(v, tf.float32) for v in values))


def numbers(measurement):
    return tuple(float(v) for v in measurement)


GROUPINGS = {
    "equal": ([4, 4], [4, 4]),
    "one_micro_batch_each": ([3], [3]),
    "unequal": ([4], [4, 4]),
    "one_against_many": ([1], [20, 20]),
    "ragged": ([4, 4, 1], [4, 4, 4]),
    "ragged_and_unequal": ([7, 1], [2, 5, 3, 11]),
}


@pytest.mark.parametrize("units", [1.0, 0.25, 37.0], ids=["examples", "quarters", "tokens"])
@pytest.mark.parametrize("signal", [0.5, 3.0, 12.0])
@pytest.mark.parametrize("grouping", GROUPINGS)
def test_two_groups_against_examples(tf, grouping, signal, units):
    sizes_a, sizes_b = GROUPINGS[grouping]
    examples = examples_of(sum(sizes_a) + sum(sizes_b), seed=len(grouping), signal=signal)
    a, b = examples[: sum(sizes_a)], examples[sum(sizes_a) :]
    measured = similarity.two_groups(moments(tf, split(a, sizes_a), split(b, sizes_b), units))

    # However many units (tokens) an example has, its covariance is that of the example.
    assert float(measured.noise_trace) == pytest.approx(oracles.trace_from_two_groups(a, b), rel=RELATIVE)
    assert float(measured.squared_gradient_norm) == pytest.approx(oracles.squared_norm_from_pairs(a, b), rel=RELATIVE)
    expected = oracles.equal_halves(oracles.cosine_of_groups(a, b), len(a), len(b))
    assert float(measured.similarity) == pytest.approx(expected, rel=RELATIVE, abs=1e-6)


@pytest.mark.parametrize("units", [1.0, 0.25, 37.0], ids=["examples", "quarters", "tokens"])
@pytest.mark.parametrize("signal", [0.5, 3.0, 12.0])
@pytest.mark.parametrize("grouping", GROUPINGS)
def test_all_pairs_against_examples(tf, grouping, signal, units):
    sizes_a, sizes_b = GROUPINGS[grouping]
    examples = examples_of(sum(sizes_a) + sum(sizes_b), seed=len(grouping), signal=signal)
    micro = split(examples, [*sizes_a, *sizes_b])
    measured = similarity.all_pairs(moments(tf, micro[: len(sizes_a)], micro[len(sizes_a) :], units))

    trace, squared_norm = oracles.trace_from_micro_batches(micro), oracles.squared_norm_from_micro_batches(micro)
    assert float(measured.noise_trace) == pytest.approx(trace, rel=RELATIVE)
    # A difference of |m|^2 and of the trace over B: the rounding is a share of those.
    rounding = RELATIVE * (abs(squared_norm) + trace / len(examples))
    assert float(measured.squared_gradient_norm) == pytest.approx(squared_norm, abs=rounding)
    # Halves of B/2 examples have |gA|^2 = |G|^2 + tr(Sigma) / (B/2) in expectation.
    expected = squared_norm / (squared_norm + 2 * trace / len(examples))
    assert float(measured.similarity) == pytest.approx(expected, abs=2 * RELATIVE)


def population():
    """Three equally likely gradients, their mean's squared norm, and the trace of their covariance."""
    vectors = np.array([[3.0, 1.0], [1.0, 0.0], [2.0, -2.0]])
    mean = vectors.mean(axis=0)
    return vectors, mean @ mean, np.mean(np.sum((vectors - mean) ** 2, axis=1))


@pytest.mark.parametrize("sizes", [([2], [2]), ([1], [3]), ([1, 2], [1]), ([1], [1])], ids=str)
@pytest.mark.parametrize("statistic", similarity.STATISTICS)
def test_estimates_are_unbiased(tf, statistic, sizes):
    """Over every draw with replacement from a small population: an exact expectation, no sampling."""
    vectors, squared_norm, trace = population()
    count = sum(sizes[0]) + sum(sizes[1])
    measured = []
    for draw in itertools.product(range(len(vectors)), repeat=count):
        micro = split(vectors[list(draw)], [*sizes[0], *sizes[1]])
        drawn = moments(tf, micro[: len(sizes[0])], micro[len(sizes[0]) :])
        measured.append(numbers(similarity.STATISTICS[statistic](drawn))[1:])
    np.testing.assert_allclose(np.mean(measured, axis=0), [squared_norm, trace], rtol=1e-6)  # float32 moments


def test_all_pairs_is_the_expectation_over_every_split(tf):
    """With equal weights the estimate of |G|^2, and the similarity, are those of the mean over all 70 splits of 8."""
    gradients = examples_of(8, seed=5, signal=3.0)
    dot, square = oracles.expected_split_moments(gradients)
    one_each = [g[None] for g in gradients]
    measured = similarity.all_pairs(moments(tf, one_each[:4], one_each[4:]))
    assert float(measured.squared_gradient_norm) == pytest.approx(dot, rel=RELATIVE)
    assert float(measured.similarity) == pytest.approx(dot / square, rel=RELATIVE)


def test_all_pairs_is_the_mean_cosine_over_random_splits(tf):
    """The mean cosine over 200 splits at a noise scale of B/4, where .667 is expected.

    Tolerance: four standard errors of the mean over the splits, and 1/d, as a mean of ratios is not the ratio of means.
    """
    dimensions, count = 20_000, 8
    gradients = oracles.gaussian_group_means(count / 4, [1] * count, dimensions, np.random.default_rng(11))
    cosines = oracles.random_split_cosines(gradients, 200, np.random.default_rng(12))
    one_each = [g[None] for g in gradients]
    pairs = float(similarity.all_pairs(moments(tf, one_each[:4], one_each[4:])).similarity)
    error = cosines.std(ddof=1) / math.sqrt(len(cosines))
    assert error < 1e-3
    assert pairs == pytest.approx(cosines.mean(), abs=4 * error + 1 / dimensions)
    assert pairs == pytest.approx(2 / 3, abs=4 * oracles.cosine_spread(count / 4, count, dimensions))


def test_two_micro_gradients_make_both_statistics_one(tf):
    """The norm identity gA.gB = (4|m|^2 - |gA|^2 - |gB|^2) / 2."""
    a, b = split(examples_of(10, seed=2, signal=4.0), [5, 5])
    two = moments(tf, [a], [b])
    groups, pairs = similarity.two_groups(two), similarity.all_pairs(two)
    identity = (4 * float(two.squared_norm) - float(two.squared_norm_a) - float(two.squared_norm_b)) / 2
    assert float(groups.squared_gradient_norm) == pytest.approx(identity, rel=RELATIVE)
    assert float(pairs.squared_gradient_norm) == pytest.approx(identity, rel=RELATIVE)
    assert float(pairs.noise_trace) == pytest.approx(float(groups.noise_trace), rel=RELATIVE)
    # The cosine divides by the geometric mean of the squared norms, all_pairs by the arithmetic one.
    ratio = math.sqrt(float(two.squared_norm_a * two.squared_norm_b)) / float(two.squared_norm_a + two.squared_norm_b) * 2
    assert float(pairs.similarity) == pytest.approx(float(groups.similarity) * ratio, rel=RELATIVE)


COSINES = [-1.0, -0.7, -1e-4, 0.0, 1e-6, 1e-3, 0.0310, 0.2075, 0.5, 0.8, 0.97, 0.999, 1 - 2**-20, 1.0]
WEIGHTS = [(1, 1), (100, 900), (900, 100), (1, 2), (3, 4), (1, 100_000), (100_000, 1), (1e-3, 5e-3), (4e7, 5e8)]


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_equal_halves_against_bisection(tf, weights):
    """A cosine in float32 stands for any within 6e-8 of it: that is what the distance from 1 can be good to."""
    for cosine in np.array(COSINES, "float32"):
        value = float(similarity.equal_halves(tf.constant(cosine), *(tf.constant(w, tf.float32) for w in weights)))
        expected = oracles.equal_halves(float(cosine), *weights)
        assert value == pytest.approx(expected, rel=2e-6), cosine
        assert 1 - abs(value) == pytest.approx(1 - abs(expected), abs=1.2e-7, rel=1e-5), cosine


@pytest.mark.parametrize("weight", [1e-3, 1.0, 7.0, 4e7])
def test_equal_halves_of_equal_groups_is_the_identity(tf, weight):
    for cosine in COSINES:
        value = similarity.equal_halves(tf.constant(cosine), tf.constant(weight), tf.constant(weight))
        assert float(value) == pytest.approx(cosine, rel=3e-7)


@pytest.mark.parametrize("statistic", similarity.STATISTICS)
def test_unequal_groups_show_the_noise_scale_that_is_there(tf, statistic):
    """At a noise scale of 1000, 100 and 900 examples show the cosine .2075: read naively, a noise scale of about 1910."""
    batch_size, noise_scale = 1000, 1000
    shown = oracles.cosine_at(noise_scale, 100, 900)
    assert batch_size / 2 * (1 / shown - 1) == pytest.approx(1910, abs=1)
    corrected = float(similarity.equal_halves(tf.constant(shown), tf.constant(100.0), tf.constant(900.0)))
    assert batch_size / 2 * (1 / corrected - 1) == pytest.approx(noise_scale, rel=1e-5)

    # The same from gradients: four times the cosine's noise floor of 1/sqrt(d), taken to the noise scale r by
    # dr/dcos = 2 / (cos (1/(nA + r) + 1/(nB + r))). all_pairs, a ratio of better known moments, spreads less.
    dimensions = 2**20
    slope = 2 / (shown * (1 / (100 + noise_scale) + 1 / (900 + noise_scale)))
    tolerance = 4 * slope / math.sqrt(dimensions)
    assert tolerance < 30
    a, b = oracles.gaussian_group_means(noise_scale, [100, 900], dimensions, np.random.default_rng(4))
    measured = similarity.STATISTICS[statistic](moments_of_means(tf, [a, b], [100, 900]))
    assert batch_size / 2 * (1 / float(measured.similarity) - 1) == pytest.approx(noise_scale, abs=tolerance)
    assert float(measured.noise_trace / measured.squared_gradient_norm) == pytest.approx(noise_scale, abs=tolerance)


def moments_of_means(tf, means, examples):
    """Moments in float32 from the mean gradients of two groups, through ``group_products``."""
    a, b = (tf.constant(m, tf.float32) for m in means)
    dot, square_a, square_b = tf.unstack(similarity.group_products([a], [b])[0])
    weight_a, weight_b = (tf.constant(float(n)) for n in examples)
    whole = (weight_a * a + weight_b * b) / (weight_a + weight_b)
    return Moments(dot, square_a, square_b, weight_a, weight_b, tf.reduce_sum(whole * whole),
                   weight_a * square_a + weight_b * square_b, tf.constant(2.0), weight_a + weight_b)


@pytest.mark.parametrize("statistic", similarity.STATISTICS)
@pytest.mark.parametrize(
    ("batch_size", "published"), [(64, 0.031), (256, 0.1135), (1000, 0.333), (4000, 0.667), (16_000, 0.889), (64_000, 0.970)]
)
def test_similarity_over_the_batch_at_a_noise_scale_of_1000(tf, batch_size, published, statistic):
    """One reading in 2^20 dimensions, within four of its standard deviations of 1 / (1 + 2 noise_scale / B)."""
    dimensions, half = 2**20, batch_size // 2
    means = oracles.gaussian_group_means(1000, [half, half], dimensions, np.random.default_rng(batch_size))
    measured = similarity.STATISTICS[statistic](moments_of_means(tf, means, [half, half]))
    expected = oracles.cosine_at(1000, half, half)
    # A first-order spread; 1/d for the second order, and the rounding of 2^20 float32 sums.
    tolerance = 4 * oracles.cosine_spread(1000, batch_size, dimensions) + 1 / dimensions + 2e-6
    assert float(measured.similarity) == pytest.approx(expected, abs=tolerance)
    assert expected == pytest.approx(published, abs=5e-4)
    # A sum of d squares; the rounding grows with the ratio of the squared norms to their difference, 32 at most here.
    assert float(measured.noise_trace) == pytest.approx(1000, rel=4 * math.sqrt(2 / dimensions) + 32 * 2e-6)


@pytest.mark.parametrize(("batch_size", "expected"), [(2000, 0.5), (1000, 1 / 3), (500, 0.2)])
def test_the_similarity_at_known_noise(tf, batch_size, expected):
    """At B = 2 noise scales the similarity is .5, at B = noise scale 1/3, at half of it .2: from moments without sampling."""
    half = batch_size / 2
    squares = 1 + 1000 / half
    values = (1.0, squares, squares, half, half, 1 + 1000 / batch_size, batch_size * squares, 2.0, batch_size)
    exact = Moments(*(tf.constant(v, tf.float32) for v in values))
    for statistic in similarity.STATISTICS.values():
        measured, squared_norm, trace = numbers(statistic(exact))
        assert (measured, squared_norm, trace) == pytest.approx((expected, 1.0, 1000.0), rel=1e-6)


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1.0, 1e8])
@pytest.mark.parametrize("statistic", similarity.STATISTICS)
def test_the_scale_of_the_gradients_does_not_matter(tf, statistic, scale):
    a, b = oracles.gaussian_group_means(60.0, [8, 24], 1000, np.random.default_rng(9))
    measured = similarity.STATISTICS[statistic](moments_of_means(tf, [scale * a, scale * b], [8, 24]))
    plain = similarity.STATISTICS[statistic](moments_of_means(tf, [a, b], [8, 24]))
    assert float(measured.similarity) == pytest.approx(float(plain.similarity), rel=1e-5)
    assert float(measured.squared_gradient_norm) == pytest.approx(scale**2 * float(plain.squared_gradient_norm), rel=1e-5)
    assert float(measured.noise_trace) == pytest.approx(scale**2 * float(plain.noise_trace), rel=1e-5)
    assert 0.05 < float(plain.similarity) < 0.95


@pytest.mark.parametrize("empty", ["a", "b"])
def test_an_empty_group_is_not_measured_by_two_groups(tf, empty):
    known = moments(tf, [examples_of(4)], [examples_of(4, seed=1)])
    nan, zero = tf.constant(float("nan")), tf.constant(0.0)
    lone = known._replace(dot=nan, **{f"squared_norm_{empty}": nan, f"weight_{empty}": zero})
    assert all(math.isnan(value) for value in numbers(similarity.two_groups(lone)))


@pytest.mark.parametrize("weights", [(0.0, 10.0), (10.0, 0.0), (0.0, 0.0)], ids=str)
@pytest.mark.parametrize("cosine", [-0.5, 0.0, 0.5, 1.0, math.nan])
def test_equal_halves_of_an_empty_group_is_nan(tf, cosine, weights):
    assert math.isnan(float(similarity.equal_halves(tf.constant(cosine), *(tf.constant(w) for w in weights))))


@pytest.mark.parametrize("micro_gradients", [0, 1])
def test_all_pairs_needs_two_micro_gradients(tf, micro_gradients):
    known = moments(tf, [examples_of(4)], [examples_of(4, seed=1)])
    lone = known._replace(micro_gradients=tf.constant(float(micro_gradients)))
    assert all(math.isnan(value) for value in numbers(similarity.all_pairs(lone)))
    assert not any(math.isnan(value) for value in numbers(similarity.all_pairs(known)))


@pytest.mark.parametrize("statistic", similarity.STATISTICS)
def test_the_similarity_stays_in_its_range(tf, statistic):
    """Rounding takes the cosine of equal and of opposite gradients beyond 1; the result does not go there."""
    for seed in range(20):
        g = np.random.default_rng(seed).normal(size=(1, 99))
        for sign, limit in ((1.0, 1.0), (-1.0, -1.0)):
            value = float(similarity.STATISTICS[statistic](moments_of_means(tf, [g[0], sign * g[0]], [2, 2])).similarity)
            assert abs(value) <= 1.0
            assert value == pytest.approx(limit, abs=1e-6)


def test_group_products_of_lists(tf):
    rng = np.random.default_rng(3)
    shapes = [(), (5,), (3, 4)]
    a, b = ([rng.normal(size=s) for s in shapes] for _ in range(2))
    left, right = (np.concatenate([np.ravel(x) for x in arrays]) for arrays in (a, b))
    products = similarity.group_products(*([tf.constant(x, tf.float32) for x in arrays] for arrays in (a, b)))
    assert (products.shape, products.dtype) == ((3, 3), tf.float32)
    scale = np.linalg.norm(left) * np.linalg.norm(right)
    expected = [[np.sum(x * y), np.sum(x * x), np.sum(y * y)] for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(products, expected, rtol=0, atol=2e-6 * scale)
    whole = [left @ right, left @ left, right @ right]
    np.testing.assert_allclose(np.sum(products, axis=0), whole, rtol=0, atol=2e-6 * scale)


def test_group_products_of_one_group(tf):
    np.testing.assert_array_equal(similarity.group_products([tf.constant([3.0, 4.0])], None), [[0, 25, 0]])


def test_group_products_add_up_over_shards(tf):
    rng = np.random.default_rng(6)
    a, b = rng.normal(size=(2, 30)).astype("float32")
    whole = similarity.group_products([tf.constant(a)], [tf.constant(b)])
    shards = [similarity.group_products([tf.constant(a[i : i + 10])], [tf.constant(b[i : i + 10])]) for i in (0, 10, 20)]
    np.testing.assert_allclose(np.sum(shards, axis=0), whole, rtol=0, atol=2e-6 * float(tf.reduce_max(whole)))
