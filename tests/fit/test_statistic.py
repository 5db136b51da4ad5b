"""What ``fit`` reports is what numpy computes from per-example gradients."""

import numpy as np
import pytest

import tf_simigrad as sg
from tests.fit import cases

MICRO = 3
RATE = 0.05


def per_example_gradients(x, y, kernel, bias):
    """Of softmax cross-entropy of one dense layer: [examples, parameters], float64."""
    logits = x.astype("float64") @ kernel + bias
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    error = p - np.eye(cases.CLASSES)[y]
    return np.concatenate([np.einsum("ni,no->nio", x, error).reshape(len(x), -1), error], axis=1)


def expected_run(x, y, kernel, bias, unit, replicas, micro_steps, statistic):
    """Similarities and noise scales of plain SGD, written out; groups as ARCHITECTURE names them."""
    rows = []
    for start in range(0, len(x), unit * micro_steps):
        part = slice(start, start + unit * micro_steps)
        gradients = per_example_gradients(x[part], y[part], kernel, bias)
        micro = gradients.reshape(-1, MICRO, gradients.shape[1]).mean(
            1
        )  # [micro-steps * replicas, parameters], replica fastest
        count = len(micro)
        if statistic == "all_pairs":
            total, b = len(gradients), MICRO
            mean = micro.mean(0)
            trace = (b * (micro**2).sum() - total * mean @ mean) / (count - 1)
            signal = mean @ mean - trace / total
            rows.append((signal / (mean @ mean + trace / total), trace / signal))
        else:
            index = np.arange(count)
            in_a = index % 2 == 0 if replicas == 1 else index % replicas < replicas // 2
            a, b = micro[in_a].mean(0), micro[~in_a].mean(0)
            na, nb = in_a.sum() * MICRO, (~in_a).sum() * MICRO
            rows.append(
                (
                    equal_halves(a @ b / np.linalg.norm(a) / np.linalg.norm(b), na, nb),
                    na * nb / (na + nb) * ((a - b) @ (a - b)) / (a @ b),
                )
            )
        mean = gradients.mean(0)
        kernel = kernel - RATE * mean[: kernel.size].reshape(kernel.shape)
        bias = bias - RATE * mean[kernel.size :]
    return rows


def equal_halves(cosine, na, nb):
    """Solves 1 / sqrt((1 + r/na)(1 + r/nb)) = |cosine| for r by bisection."""
    low, high = 0.0, 1e12
    for _ in range(200):
        r = (low + high) / 2
        low, high = (r, high) if 1 / np.sqrt((1 + r / na) * (1 + r / nb)) > abs(cosine) else (low, r)
    return np.sign(cosine) / (1 + 2 * low / (na + nb))


@pytest.mark.parametrize("statistic", ["two_groups", "all_pairs"])
@pytest.mark.parametrize(("replicas", "micro_steps"), [(1, 2), (1, 3), (1, 5), (2, 1), (2, 3), (3, 1), (3, 2), (4, 2)])
def test_reported_similarity_and_noise_scale(tf, strategies, replicas, micro_steps, statistic):
    unit = replicas * MICRO
    x, y = cases.arrays(unit * micro_steps * 3)
    with strategies(replicas).scope():
        tf.keras.utils.set_random_seed(1)
        model = tf.keras.Sequential([tf.keras.Input((cases.FEATURES,)), tf.keras.layers.Dense(cases.CLASSES)])
        model.compile(tf.keras.optimizers.SGD(RATE), cases.cross_entropy(tf.keras))
    kernel, bias = (w.astype("float64") for w in model.get_weights())
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(batch_size=unit * micro_steps), statistic=statistic)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(unit, drop_remainder=True)
    model.fit(dataset, epochs=1, verbose=0, callbacks=[adaptive])

    expected = expected_run(x, y, kernel, bias, unit, replicas, micro_steps, statistic)
    assert len(adaptive.history) == len(expected) == 3
    for record, (similarity, noise_scale) in zip(adaptive.history, expected, strict=True):
        assert record.similarity == pytest.approx(np.clip(similarity, -1, 1), abs=2e-5)
        if noise_scale > 0:
            assert record.noise_scale == pytest.approx(noise_scale, rel=2e-3)
        else:
            assert record.noise_scale is None


def test_nothing_is_reported_where_nothing_can_be_compared(tf, strategies):
    model = cases.compiled(tf.keras, cases.CASES["sequential"], tf.keras.optimizers.SGD(RATE))
    for statistic in ("two_groups", "all_pairs"):
        adaptive = sg.AdaptiveBatch(sg.FixedBatch(batch_size=4), statistic=statistic)
        logs = cases.fit(model, cases.arrays(12), batch_size=4, callbacks=[adaptive]).history
        assert [(r.similarity, r.noise_scale, r.skipped) for r in adaptive.history] == [(None, None, False)] * 3
        assert np.isnan(logs["similarity"]).all()


def test_a_transform_is_outside_the_statistic_and_equals_the_penalty_by_hand(tf, strategies):
    """L2 changes the weights as adding weight * w to the gradient does, and leaves the similarity alone."""
    x, y = cases.arrays(24)
    weight, histories = 0.7, []
    for transform in (None, sg.L2(weight)):
        tf.keras.utils.set_random_seed(1)
        model = tf.keras.Sequential([tf.keras.Input((cases.FEATURES,)), tf.keras.layers.Dense(cases.CLASSES)])
        model.compile(tf.keras.optimizers.SGD(RATE), cases.cross_entropy(tf.keras))
        kernel, bias = (w.astype("float64") for w in model.get_weights())
        adaptive = sg.AdaptiveBatch(sg.FixedBatch(batch_size=12), transform=transform)
        cases.fit(model, (x, y), batch_size=6, callbacks=[adaptive])
        histories.append(adaptive.history)
    for part in (slice(0, 12), slice(12, 24)):
        mean = per_example_gradients(x[part], y[part], kernel, bias).mean(0)
        kernel = kernel - RATE * (mean[: kernel.size].reshape(kernel.shape) + weight * kernel)
        bias = bias - RATE * (mean[kernel.size :] + weight * bias)
    np.testing.assert_allclose(model.get_weights()[0], kernel, atol=1e-6)
    np.testing.assert_allclose(model.get_weights()[1], bias, atol=1e-6)
    assert histories[0][0].similarity == pytest.approx(histories[1][0].similarity, abs=1e-6)
