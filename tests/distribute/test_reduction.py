"""Reductions over replicas against numpy: the mean gradient and every moment."""

import collections
import math

import numpy as np
import pytest

from tf_simigrad.distribute import packing
from tf_simigrad.distribute import reduction as reductions
from tf_simigrad.distribute.reduction_records import Needs, Totals
from tf_simigrad.distribute.replicas import Replicas
from tf_simigrad.records import Moments

pytestmark = pytest.mark.one_keras

SHAPES = [(7,), (), (3, 5), (1,), (13, 2), (2, 1, 3)]  # 58 elements, and hardly a multiple of a number of replicas
TIMEOUT_SECONDS = 20.0
# Sums of at most 5 float32 terms of like size, then products over 58 of them.
MEAN, MOMENT = {"rtol": 1e-6, "atol": 1e-6}, {"rtol": 2e-5}


def random_sums(owners, shapes=SHAPES, seed=0):
    """Per owner (a replica or a slot) its weighted gradient sums, of a common mean and noise."""
    rng = np.random.default_rng(seed)
    common = [rng.normal(size=shape) for shape in shapes]
    return [[(c + rng.normal(size=c.shape)).astype("float32") for c in common] for _ in range(owners)]


def counters_of(weights):
    """Per owner examples, weight, weighted squared norms, micro-gradients, fingerprint, all of them unlike each other."""
    return np.array([[2 * w + 1, w, 0.5 * w * w, 1 + (i % 3), 30 + i] for i, w in enumerate(weights)], "float32")


def flat(arrays):
    return np.concatenate([np.ravel(a).astype("float64") for a in arrays])


def expected_moments(sums, counters, in_group_a):
    """Moments in float64: group means are sums over weights; 0 / 0 is NaN."""
    vectors = np.array([flat(s) for s in sums])
    weights = counters[:, 1].astype("float64")
    in_a = np.arange(len(sums)) < in_group_a
    with np.errstate(invalid="ignore"):
        a = vectors[in_a].sum(axis=0) / weights[in_a].sum()
        b = vectors[~in_a].sum(axis=0) / weights[~in_a].sum()
        whole = vectors.sum(axis=0) / weights.sum()
    examples, _, squares, count, _ = counters.astype("float64").sum(axis=0)
    moments = Moments(a @ b, a @ a, b @ b, weights[in_a].sum(), weights[~in_a].sum(), whole @ whole, squares, count, examples)
    return whole, moments


def reduce_on(tf, strategy, sums, counters, timeout=TIMEOUT_SECONDS):
    """What each replica gets: [replica](means, moments), and the traced function."""
    reduction = reductions.AllToAllReduction(Replicas(strategy), Needs(), timeout)

    def distributed(values):
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(values[context.replica_id_in_sync_group])
        )

    variables = [distributed([s[i] for s in sums]) for i in range(len(sums[0]))]

    @tf.function
    def run(variables, counters):
        def one(v, c):
            return reduction(Totals([v], c[None]), tf.constant(7.0))[:4]

        return strategy.run(one, args=(variables, counters))

    arguments = (variables, distributed(list(counters)))
    means, moments, workers, fingerprints = run(*arguments)
    local = strategy.experimental_local_results
    assert [list(w.numpy()) for w in local(workers)] == [[7.0]] * len(sums)  # one worker, however many replicas
    assert [list(f.numpy()) for f in local(fingerprints)] == [[30.0 + i for i in range(len(sums))]] * len(sums)
    results = [([local(m)[r].numpy() for m in means], [float(local(m)[r]) for m in moments]) for r in range(len(sums))]
    return results, run.get_concrete_function(*arguments)


@pytest.mark.parametrize(
    ("replicas", "bucket_elements"),
    [(2, None), (3, None), (4, None), (5, None), (2, 9), (3, 9), (4, 9), (5, 9), (3, 1)],
    ids=str,
)
def test_all_to_all_against_numpy(tf, strategies, monkeypatch, replicas, bucket_elements):
    if bucket_elements is not None:
        monkeypatch.setattr(packing, "BUCKET_ELEMENTS", bucket_elements)
    sums = random_sums(replicas, seed=replicas)
    counters = counters_of([3.0, 1.0, 5.0, 0.5, 2.0][:replicas])
    results, _ = reduce_on(tf, strategies(replicas), sums, counters)

    whole, expected = expected_moments(sums, counters, in_group_a=replicas // 2)
    for means, moments in results:
        assert [m.shape for m in means] == SHAPES
        np.testing.assert_allclose(flat(means), whole, **MEAN)
        for name, value, right in zip(Moments._fields, moments, expected, strict=True):
            np.testing.assert_allclose(value, right, **MOMENT, err_msg=name)
    for means, moments in results[1:]:  # the same bits everywhere: replicas decide alike
        assert moments == results[0][1]
        np.testing.assert_array_equal(flat(means), flat(results[0][0]))


@pytest.mark.parametrize("shapes", [[()], [(1,)], [(6,)], [(0, 2), (3,)]], ids=str)
def test_few_elements(tf, strategies, shapes):
    """Fewer elements than replicas leave some with nothing but padding."""
    sums, counters = random_sums(4, shapes), counters_of([1.0, 2.0, 3.0, 4.0])
    results, _ = reduce_on(tf, strategies(4), sums, counters)
    whole, expected = expected_moments(sums, counters, in_group_a=2)
    means, moments = results[3]
    assert [m.shape for m in means] == shapes
    np.testing.assert_allclose(flat(means), whole, **MEAN)
    np.testing.assert_allclose(moments, expected, **MOMENT)


@pytest.mark.parametrize(
    ("weights", "unknown"),
    [
        ([0.0, 2.0, 3.0], {"dot", "squared_norm_a"}),  # the first group is the first replica
        ([2.0, 0.0, 0.0], {"dot", "squared_norm_b"}),
        ([2.0, 0.0, 3.0], set()),
        ([0.0, 0.0, 0.0], {"dot", "squared_norm_a", "squared_norm_b", "squared_norm"}),
    ],
    ids=["a_empty", "b_empty", "one_empty_replica", "nothing"],
)
def test_groups_without_weight_are_not_measured(tf, strategies, weights, unknown):
    sums = [[g * (w > 0) for g in s] for s, w in zip(random_sums(3), weights, strict=True)]
    counters = counters_of(weights)
    results, _ = reduce_on(tf, strategies(3), sums, counters)
    whole, expected = expected_moments(sums, counters, in_group_a=1)
    means, moments = results[0]
    assert {name for name, value in zip(Moments._fields, moments, strict=True) if math.isnan(value)} == unknown
    np.testing.assert_allclose(moments, expected, **MOMENT)
    np.testing.assert_allclose(flat(means), whole, **MEAN)


def test_what_is_not_finite_shows_in_the_squared_norm(tf, strategies):
    """The test for a finite gradient reads this one field, on every replica."""
    sums, counters = random_sums(3), counters_of([1.0, 1.0, 1.0])
    sums[1][2][0, 0] = np.inf
    results, _ = reduce_on(tf, strategies(3), sums, counters)
    assert [math.isfinite(moments[Moments._fields.index("squared_norm")]) for _, moments in results] == [False] * 3


@pytest.mark.parametrize("replicas", [2, 5])
def test_no_more_travels_than_in_a_plain_all_reduce(tf, strategies, replicas):
    """Each replica hands its P elements to one exchange and its part of them to one gather; three scalars are added up, and
    six, one per worker, and two per replica."""
    _, concrete = reduce_on(tf, strategies(replicas), random_sums(replicas), counters_of([1.0] * replicas))
    collected = [op for op in concrete.graph.get_operations() if op.type.startswith("Collective")]
    kinds = ("CollectiveAllToAllV2", "CollectiveReduceV2", "CollectiveGatherV2")
    assert collections.Counter(op.type for op in collected) == {kinds[0]: replicas, kinds[1]: 2 * replicas, kinds[2]: replicas}

    shard = sum(-(-math.prod(shape) // replicas) for shape in SHAPES)
    assert [tuple(op.inputs[0].shape) for op in collected if op.type == kinds[0]] == [(replicas, shard)] * replicas
    sums = sorted(tuple(op.inputs[0].shape) for op in collected if op.type == kinds[1])
    assert sums == [(3,)] * replicas + [(6 + 1 + 2 * replicas,)] * replicas


@pytest.mark.parametrize(
    ("synchronization", "aggregation"), [("AUTO", "NONE"), ("ON_READ", "MEAN")], ids=["as_in_keras_3", "as_in_tf_keras"]
)
@pytest.mark.parametrize("replicas", [2, 5])
def test_average_over_the_replicas(tf, strategies, replicas, synchronization, aggregation):
    """Of moving statistics, alone and after a reduction in the same function, as often as it is called."""
    strategy = strategies(replicas)
    reduction = reductions.AllToAllReduction(Replicas(strategy), Needs(), TIMEOUT_SECONDS)
    factors, shapes = (1.0, 10.0, 100.0), ((), (3,), (2, 2))
    with strategy.scope():
        variables = [tf.Variable(tf.zeros(shape), trainable=False, aggregation=tf.VariableAggregation[aggregation],
                                 synchronization=tf.VariableSynchronization[synchronization]) for shape in shapes]  # fmt: skip

    @tf.function
    def step(start, reduce):
        def one():
            rank = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
            if reduce:
                reduction(Totals([[tf.ones(4)]], tf.ones((1, 5))), tf.constant(1.0))
            for variable, shape, factor in zip(variables, shapes, factors, strict=True):
                variable.assign(tf.fill(shape, factor * (start + rank)))
            reduction.average(variables)

        strategy.run(one)

    for start, reduce in ((0.0, False), (7.0, True), (-2.0, False)):
        step(tf.constant(start), reduce)
        for variable, shape, factor in zip(variables, shapes, factors, strict=True):
            expected = np.full(shape, factor * (start + (replicas - 1) / 2))
            for part in strategy.experimental_local_results(variable):
                np.testing.assert_allclose(part, expected, rtol=1e-6)


def test_the_average_over_one_replica_is_itself(tf):
    variable = tf.Variable([1.0, 2.0])
    reductions.LocalReduction(Needs(two_groups=True)).average([variable])
    np.testing.assert_array_equal(variable, [1.0, 2.0])


@pytest.mark.parametrize("weights", [[3.0, 1.5], [0.0, 2.0], [2.0, 0.0]], ids=str)
def test_two_slots_are_the_groups_of_one_replica(tf, weights):
    reduction = reductions.LocalReduction(Needs(two_groups=True))
    assert reduction.slots == 2
    sums = [[g * (w > 0) for g in s] for s, w in zip(random_sums(2), weights, strict=True)]
    counters = counters_of(weights)
    totals = Totals([[tf.constant(g) for g in s] for s in sums], tf.constant(counters))
    means, moments, workers, fingerprints = reduction(totals, tf.constant(7.0))[:4]
    assert workers.numpy().tolist() == [7.0] and fingerprints.numpy().tolist() == [30.0 + 31.0]
    whole, expected = expected_moments(sums, counters, in_group_a=1)
    assert [tuple(m.shape) for m in means] == SHAPES
    np.testing.assert_allclose(flat(means), whole, **MEAN)
    np.testing.assert_allclose([float(m) for m in moments], expected, **MOMENT)


def test_one_slot_knows_no_groups(tf):
    reduction = reductions.LocalReduction(Needs(two_groups=False))
    assert reduction.slots == 1
    (sums,), counters = random_sums(1), counters_of([4.0])
    totals = Totals([[tf.constant(g) for g in sums]], tf.constant(counters))
    means, moments, *_ = reduction(totals, tf.constant(1.0))
    vector = flat(sums) / 4.0
    np.testing.assert_allclose(flat(means), vector, **MEAN)
    known = {"squared_norm": vector @ vector, "weighted_squared_norms": 8.0, "micro_gradients": 1.0, "examples": 9.0}
    for name, value in known.items():
        np.testing.assert_allclose(getattr(moments, name), value, **MOMENT)
    assert float(moments.weight_a + moments.weight_b) == 4.0
    assert math.isnan(float(moments.dot))


@pytest.mark.parametrize(
    ("replicas", "needs_groups", "kind", "slots"),
    [(1, True, "LocalReduction", 2), (1, False, "LocalReduction", 1), (2, True, "AllToAllReduction", 1),
     (2, False, "AllToAllReduction", 1)],
)  # fmt: skip
def test_the_reduction_fits_the_replicas(strategies, replicas, needs_groups, kind, slots):
    reduction = reductions.reduction_for(Replicas(strategies(replicas)), Needs(needs_groups))
    assert (type(reduction).__name__, reduction.slots) == (kind, slots)


class Probe:
    """Halves the gradient, and reports what it was given: groups, whether it is usable, the sum of all variances."""

    keeps_raw = False

    def __init__(self, tf, groups):
        self.tf, self.groups = tf, groups

    def report_size(self, variables):
        return 3

    def adapted(self, shards, total):
        tf = self.tf
        sums = total(tf.add_n([tf.reduce_sum(v) for v in shards.variances])[None])
        return [m / 2 for m in shards.means], tf.concat([[shards.groups, tf.cast(shards.is_usable, tf.float32)], sums], axis=0)


@pytest.mark.parametrize("weights", [[1.0] * 4, [3.0, 1.0, 5.0, 0.5], [2.0, 0.0, 3.0, 1.0]], ids=str)
@pytest.mark.parametrize("groups", ["replicas", "micro_steps"])
def test_what_acts_on_shards_sees_mean_and_variance_of_the_groups(tf, strategies, groups, weights):
    """Over replicas against the deviations from the mean, over micro-steps against the squares that each replica has summed."""
    strategy, count = strategies(4), 4
    sums = [[g * (w > 0) for g in s] for s, w in zip(random_sums(count), weights, strict=True)]
    squares = [[np.abs(g) * 3 + w for g in s] for s, w in zip(random_sums(count, seed=5), weights, strict=True)]
    counters = counters_of(weights)
    reduction = reductions.AllToAllReduction(Replicas(strategy), Needs(adapt=Probe(tf, groups)), TIMEOUT_SECONDS)

    def distributed(values):
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(values[context.replica_id_in_sync_group])
        )

    @tf.function
    def run(sums, squares, counters):
        def one(sums, squares, counters):
            totals = Totals([sums], counters[None], squares if groups == "micro_steps" else ())
            reduced = reduction(totals, tf.constant(2.0))
            return reduced.gradients, reduced.adapted

        return strategy.run(one, args=(sums, squares, counters))

    by_variable = [distributed([s[i] for s in sums]) for i in range(len(SHAPES))]
    squared = [distributed([s[i].astype("float32") for s in squares]) for i in range(len(SHAPES))]
    gradients, reported = run(by_variable, squared, distributed(list(counters)))
    weight = np.array(weights)
    vectors = np.array([flat(s) for s in sums])
    mean = vectors.sum(axis=0) / weight.sum()
    present = weight > 0
    if groups == "replicas":
        deviations = vectors[present] / weight[present, None] - mean
        variance, expected_groups = (weight[present] @ deviations**2) / weight.sum(), present.sum()
    else:
        variance, expected_groups = sum(flat(s) for s in squares) / weight.sum() - mean**2, counters[:, 3].sum()
    for replica in range(count):
        own = [strategy.experimental_local_results(g)[replica] for g in gradients]
        assert [tuple(g.shape) for g in own] == SHAPES
        np.testing.assert_allclose(flat(own), mean / 2, **MEAN)
        said = strategy.experimental_local_results(reported)[replica]
        np.testing.assert_allclose(said, [expected_groups, 1.0, variance.sum()], rtol=2e-5)


@pytest.mark.parametrize("replicas", [2, 5])
def test_moments_of_each_variable(tf, strategies, replicas):
    strategy, shapes = strategies(replicas), [(7,), (3, 5), (0, 2), (1,)]
    sums, counters = random_sums(replicas, shapes), counters_of([1.0, 2.0, 0.5, 3.0, 1.5][:replicas])
    reduction = reductions.AllToAllReduction(Replicas(strategy), Needs(by_variable=True), TIMEOUT_SECONDS)

    def distributed(values):
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(values[context.replica_id_in_sync_group])
        )

    @tf.function
    def run(variables, counters):
        def one(v, c):
            reduced = reduction(Totals([v], c[None]), tf.constant(1.0))
            return reduced.by_variable.dot, reduced.by_variable.squared_norm_a, reduced.by_variable.squared_norm_b

        return strategy.run(one, args=(variables, counters))

    found = run([distributed([s[i] for s in sums]) for i in range(len(shapes))], distributed(list(counters)))
    for i in range(len(shapes)):
        _, expected = expected_moments([[s[i]] for s in sums], counters, replicas // 2)
        values = [float(strategy.experimental_local_results(f)[0][i]) for f in found]
        np.testing.assert_allclose(values, [expected.dot, expected.squared_norm_a, expected.squared_norm_b], **MOMENT)
