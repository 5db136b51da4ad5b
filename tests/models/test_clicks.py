"""Generated clicks: their lines say what was drawn, their probabilities are true, and nothing ranks them better on average."""

import numpy as np
import pytest

from models import clicks, criteo

pytestmark = pytest.mark.one_keras

EXAMPLES = 200_000


@pytest.fixture(scope="module")
def distribution():
    return clicks.Clicks(seed=0, largest_vocabulary=300)


@pytest.fixture(scope="module")
def drawn(distribution):
    return distribution.draw(np.random.default_rng(9), EXAMPLES)


def test_lines_hold_what_was_drawn(distribution, drawn):
    part = clicks.Drawn(*(array[:2000] for array in drawn))
    examples, bad = criteo.parse(distribution.lines(part))
    assert not bad
    np.testing.assert_array_equal(examples.labels, part.labels)
    np.testing.assert_allclose(examples.dense, np.log1p(np.where(part.integers == clicks.EMPTY, 0, part.integers)), rtol=1e-6)
    np.testing.assert_array_equal(examples.categories == criteo.EMPTY, part.ids == clicks.EMPTY)
    # Each category of each column has a token, and no two have the same.
    present = part.ids != clicks.EMPTY
    columns = np.nonzero(present)[1]
    found = set(zip(columns.tolist(), part.ids[present].tolist(), examples.categories[present].tolist(), strict=True))
    assert len({(column, rank) for column, rank, _ in found}) == len({token for *_, token in found}) == len(found) > 1000


def test_tokens_are_eight_digits(distribution, drawn):
    text = distribution.lines(clicks.Drawn(*(array[:500] for array in drawn)))
    tokens = [token for line in text.decode().splitlines() for token in line.split("\t")[14:] if token]
    assert set(map(len, tokens)) == {8}


def test_features_are_of_the_kinds_that_were_wanted(distribution, drawn):
    assert min(distribution.vocabularies) == 4 and max(distribution.vocabularies) == 300
    assert drawn.ids.max(axis=0).tolist() == pytest.approx([n - 1 for n in distribution.vocabularies], abs=40)
    assert all(drawn.ids.max(axis=0) < distribution.vocabularies) and drawn.integers.max() <= clicks.LARGEST_INTEGER
    for missing, columns in ((drawn.integers == clicks.EMPTY, 13), (drawn.ids == clicks.EMPTY, 26)):
        shares = missing.mean(axis=0)
        assert 0 < sum(shares > 0.01) < columns and shares.max() < 0.5
    assert drawn.integers[drawn.integers != clicks.EMPTY].min() == 1
    # Zipf-like: (r + 2)^-1.5.
    column = int(np.argmax(distribution.vocabularies))
    counts = np.bincount(drawn.ids[drawn.ids[:, column] != clicks.EMPTY, column], minlength=300)
    for rank in (1, 5, 20):
        assert counts[rank] / counts[0] == pytest.approx((1 + rank / 2) ** -1.5, rel=0.1)


def test_probabilities_are_calibrated(drawn):
    """In each of twenty groups by probability the clicks are as many as the probabilities say."""
    squares = 0.0
    for group in np.array_split(np.argsort(drawn.probabilities), 20):
        p = drawn.probabilities[group]
        squares += (drawn.labels[group].sum() - p.sum()) ** 2 / (p * (1 - p)).sum()
    # Chi-square with 20 degrees of freedom: above 46 once in 1000.
    assert squares < 46


def test_the_logit_is_one_in_a_logistic_fit(drawn):
    """Labels fitted by slope and bias on the logit give 1 and 0."""
    logits = np.log(drawn.probabilities) - np.log1p(-drawn.probabilities)
    inputs = np.stack([logits, np.ones_like(logits)])
    fit = np.array([0.5, 0.3])
    for _ in range(10):
        p = 1 / (1 + np.exp(-fit @ inputs))
        fit += np.linalg.solve(inputs * (p * (1 - p)) @ inputs.T, inputs @ (drawn.labels - p))
    np.testing.assert_allclose(fit, [1.0, 0.0], atol=0.03)


def test_the_logit_is_linear_but_for_the_pairs(distribution, drawn):
    """Regressed on logarithms, on what is missing, on categories, and on pairs of categories: nothing is left."""
    part = clicks.Drawn(*(array[:20_000] for array in drawn))
    logits = np.log(part.probabilities) - np.log1p(-part.probabilities)
    missing = part.integers == clicks.EMPTY
    columns = [np.ones(len(logits)), *np.where(missing, 0, np.log1p(np.maximum(part.integers, 0))).T, *missing.T.astype(float)]
    small = [c for c, n in enumerate(distribution.vocabularies) if n <= 8]
    assert len(small) >= 4
    # Of examples that differ in the small columns and the integers only.
    fixed = np.tile(part.ids[0], (len(logits), 1))
    fixed[:, small] = part.ids[:, small]
    p = distribution.probabilities(part.integers, fixed)
    kinds = [fixed[:, c] == kind for c in small for kind in range(-1, distribution.vocabularies[c])]
    pairs = [a & b for i, a in enumerate(kinds) for b in kinds[i + 1 :]]
    joint = np.stack([*columns, *(k.astype(float) for k in kinds), *(k.astype(float) for k in pairs if k.any())], axis=1)
    wanted = np.log(p) - np.log1p(-p)
    left = wanted - joint @ np.linalg.lstsq(joint, wanted, rcond=None)[0]
    assert np.abs(left).max() < 1e-6 and wanted.std() > 0.1


def test_click_rate_and_ceiling_are_those_wanted(drawn):
    assert drawn.labels.mean() == pytest.approx(clicks.CLICK_RATE, abs=0.01)
    assert clicks.expected_auc(drawn.probabilities) == pytest.approx(clicks.AUC, abs=0.01)


def test_a_missing_value_has_an_effect_of_its_own(distribution, drawn):
    """Beyond that of the same example with any value."""
    integers, ids = drawn.integers[:200].copy(), drawn.ids[:200].copy()
    lacking = int(np.argmax((drawn.integers == clicks.EMPTY).mean(axis=0)))
    with_value, without = integers.copy(), integers.copy()
    with_value[:, lacking], without[:, lacking] = 1, clicks.EMPTY
    assert (distribution.probabilities(with_value, ids) != distribution.probabilities(without, ids)).all()
    lacking = int(np.argmax((drawn.ids == clicks.EMPTY).mean(axis=0)))
    effects = []
    for value in (clicks.EMPTY, *range(distribution.vocabularies[lacking])):
        ids[:, lacking] = value
        effects.append(distribution.probabilities(integers, ids).mean())
    assert len(set(effects)) == len(effects)


@pytest.mark.parametrize("probabilities", [[0.2, 0.9], [0.1, 0.5, 0.5, 0.7], [0.3] * 4, np.linspace(0.05, 0.95, 9) ** 2])
def test_the_expected_auc_is_that_of_all_labels_together(probabilities):
    """Over every outcome of the labels: pairs in the right order, by pairs of a click and another."""
    p = np.array(probabilities)
    right = pairs = 0.0
    for outcome in range(2 ** len(p)):
        labels = outcome >> np.arange(len(p)) & 1
        chance = np.prod(np.where(labels, p, 1 - p))
        for i in np.flatnonzero(labels == 1):
            for j in np.flatnonzero(labels == 0):
                pairs += chance
                right += chance * ((p[i] > p[j]) + 0.5 * (p[i] == p[j]))
    assert clicks.expected_auc(p) == pytest.approx(right / pairs, rel=1e-12)


def test_the_mean_auc_of_many_labels_is_the_expected_one_and_no_other_ranking_has_more(drawn):
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(1)
    p = drawn.probabilities[:5000]
    other = p * np.exp(0.3 * rng.normal(size=p.shape))
    found = {"true": [], "other": []}
    for _ in range(60):
        labels = rng.random(p.shape) < p
        found["true"].append(roc_auc_score(labels, p))
        found["other"].append(roc_auc_score(labels, other))
    of_mean = np.std(found["true"]) / np.sqrt(60)
    assert abs(np.mean(found["true"]) - clicks.expected_auc(p)) < 4 * of_mean < 0.005
    assert np.mean(found["other"]) < clicks.expected_auc(p) - 4 * of_mean


def test_the_expected_loss_is_the_entropy():
    p = np.array([0.5, 0.25])
    assert clicks.expected_loss(p) == pytest.approx((np.log(2) + 0.25 * np.log(4) + 0.75 * np.log(4 / 3)) / 2)


def test_seeds_make_distributions_and_examples(distribution, monkeypatch):
    monkeypatch.setattr(clicks, "LINES_AT_ONCE", 100)

    def text(seed, of=distribution, examples=250):
        return b"".join(of.lines(batch) for batch in of.batches(seed, examples))

    lines = text([0, 2]).splitlines()
    assert len(lines) == len(set(lines)) == 250
    assert text([0, 2]) == text([0, 2]) == text([0, 2], clicks.Clicks(0, 300))
    assert not set(lines) & set(text([0, 3]).splitlines())
    assert clicks.Clicks(1, 300).vocabularies != distribution.vocabularies


@pytest.mark.parametrize("largest", [3, 2**24 + 1])
def test_vocabularies_of_other_sizes_are_refused(largest):
    with pytest.raises(ValueError, match=f"largest_vocabulary={largest}: expected 4 to 16777216"):
        clicks.Clicks(0, largest)
