"""Generated click logs in Criteo's layout whose probabilities of a click are known, and a DLRM can represent. NumPy only.

The best that a model can do on them is known therefore: `expected_auc` and `expected_loss` of the true probabilities.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from models.criteo import CATEGORICAL, DENSE, EMPTY

CLICK_RATE = 0.25
# About that of the best models on Criteo.
AUC = 0.80
SMALLEST_VOCABULARY = 4
# Of the variance of the logit: what dense features, single categories, and pairs of categories account for.
SHARES = (0.40, 0.45, 0.15)
PAIRS = 8
LATENT = 4
# A category of rank r has a frequency in proportion to (r + 2)^-1.5: most of what is to be learned is in some hundred of them.
ZIPF, ZIPF_OFFSET = 1.5, 2.0
LARGEST_INTEGER = 99_999
LINES_AT_ONCE = 50_000
CALIBRATED_ON = 200_000


class Drawn(NamedTuple):
    """Examples.

    Attributes:
        integers: 1 or more, `EMPTY` for a missing one, int64 [examples, 13].
        ids: Rank among the categories of the column, from 0 on; `EMPTY` for a missing one, int64 [examples, 26].
        probabilities: Of a click, float64 [examples].
        labels: 0 or 1, int64 [examples].
    """

    integers: np.ndarray
    ids: np.ndarray
    probabilities: np.ndarray
    labels: np.ndarray


class Clicks:
    """A distribution of examples.

    The logit of a click is a bias, plus what is linear in log(1 + x) of the integers x, plus a weight of each category, plus
    inner products of vectors of the categories of some pairs of columns. A feature that is missing has an effect of its own.

    Args:
        seed: Of the distribution, 0 or more. The examples have seeds of their own.
        largest_vocabulary: Categories of the column that has most; the smallest column has 4.

    Attributes:
        vocabularies: Categories of each column.

    Raises:
        ValueError: If there are fewer than 4 in the largest, or too many for the tokens.
    """

    def __init__(self, seed: int, largest_vocabulary: int = 20_000) -> None:
        if not SMALLEST_VOCABULARY <= largest_vocabulary <= 2**24:
            raise ValueError(f"largest_vocabulary={largest_vocabulary}: expected {SMALLEST_VOCABULARY} to {2**24}")
        rng = np.random.default_rng([seed, 0])
        sizes = np.geomspace(SMALLEST_VOCABULARY, largest_vocabulary, CATEGORICAL).round().astype(int)
        self.vocabularies = tuple(rng.permutation(sizes).tolist())
        self._cumulative = [np.cumsum((np.arange(n) + ZIPF_OFFSET) ** -ZIPF) for n in self.vocabularies]
        # Half of the columns lack some values.
        self._missing_dense, self._missing_ids = (_shares_missing(rng, columns) for columns in (DENSE, CATEGORICAL))
        # Of the logarithms of the integers.
        self._means, self._deviations = rng.uniform(0.5, 4.0, DENSE), rng.uniform(0.5, 1.5, DENSE)
        # The last row of each is for a missing value: the place of EMPTY.
        self._slopes, self._if_missing = rng.normal(size=(2, DENSE))
        self._weights = [rng.normal(size=n + 1) for n in self.vocabularies]
        columns = rng.permutation(CATEGORICAL)[: 2 * PAIRS].reshape(PAIRS, 2).tolist()
        self._pairs = [(a, b, *(rng.normal(size=(self.vocabularies[c] + 1, LATENT)) for c in (a, b))) for a, b in columns]
        self._bias, self._scales = 0.0, np.ones(3)
        self._calibrate(seed)
        self._tokens = [_tokens(column, n) for column, n in enumerate(self.vocabularies)]

    def _calibrate(self, seed: int) -> None:
        """Scales the parts of the logit so that the shares, the click rate and the AUC are those wanted."""
        # Here and not above: who only reads data that was generated needs no SciPy.
        from scipy.optimize import brentq

        parts = self._parts(*self._features(np.random.default_rng([seed, 1]), CALIBRATED_ON))
        relative = np.sqrt(SHARES) / parts.std(axis=1)
        logits = relative @ parts

        def bias(scale):
            return brentq(lambda b: _sigmoid(scale * logits + b).mean() - CLICK_RATE, -100.0, 100.0)

        scale = brentq(lambda s: expected_auc(_sigmoid(s * logits + bias(s))) - AUC, 0.05, 10.0, xtol=1e-4)
        self._bias, self._scales = bias(scale), scale * relative

    def _features(self, rng: np.random.Generator, examples: int) -> tuple[np.ndarray, np.ndarray]:
        drawn = np.exp(rng.normal(self._means, self._deviations, (examples, DENSE)))
        # No zeros: a model sees a missing integer as one.
        integers = 1 + np.minimum(drawn, LARGEST_INTEGER - 1).astype(np.int64)
        integers[rng.random((examples, DENSE)) < self._missing_dense] = EMPTY
        uniform = rng.random((CATEGORICAL, examples))
        ids = [np.searchsorted(c, u * c[-1], side="right") for c, u in zip(self._cumulative, uniform, strict=True)]
        ids = np.stack(ids, axis=1)
        ids[rng.random((examples, CATEGORICAL)) < self._missing_ids] = EMPTY
        return integers, ids

    def _parts(self, integers: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """The parts of the logit that shares are of, before they are scaled [3, examples]."""
        standard = (np.log1p(np.maximum(integers, 0)) - self._means) / self._deviations
        dense = np.where(integers == EMPTY, self._if_missing, self._slopes * standard).sum(axis=1)
        single = sum(weights[ids[:, column]] for column, weights in enumerate(self._weights))
        pairs = sum(np.einsum("el,el->e", left[ids[:, a]], right[ids[:, b]]) for a, b, left, right in self._pairs)
        return np.stack([dense, single, pairs])

    def probabilities(self, integers: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Of a click, for features as `Drawn` has them."""
        return _sigmoid(self._scales @ self._parts(integers, ids) + self._bias)

    def draw(self, rng: np.random.Generator, examples: int) -> Drawn:
        """So many examples, independent of each other."""
        integers, ids = self._features(rng, examples)
        probabilities = self.probabilities(integers, ids)
        return Drawn(integers, ids, probabilities, (rng.random(examples) < probabilities).astype(np.int64))

    def batches(self, seed: Sequence[int], examples: int) -> Iterator[Drawn]:
        """So many examples, some at a time; `seed` is of these, and holds numbers of 0 or more."""
        for number, start in enumerate(range(0, examples, LINES_AT_ONCE)):
            yield self.draw(np.random.default_rng([*seed, number]), min(LINES_AT_ONCE, examples - start))

    def lines(self, drawn: Drawn) -> bytes:
        """Examples as Criteo's lines; categories are tokens of 8 hexadecimal digits, no two of which are the same."""
        columns = [drawn.labels, *drawn.integers.T]
        fields = [_INTEGERS[column].tolist() for column in columns]
        fields += [tokens[ids].tolist() for tokens, ids in zip(self._tokens, drawn.ids.T, strict=True)]
        return b"\n".join(map(b"\t".join, zip(*fields, strict=True))) + b"\n"


def _shares_missing(rng: np.random.Generator, columns: int) -> np.ndarray:
    return rng.permutation(np.where(np.arange(columns) % 2, rng.uniform(0.02, 0.4, columns), 0.0))


def _tokens(column: int, categories: int) -> np.ndarray:
    """The token of each category, and an empty one for EMPTY."""
    # Times an odd number: a bijection of 32 bits, under which neighbours look nothing alike.
    numbers = (np.arange(categories, dtype=np.uint64) * 32 + column) * 0x9E3779B1 & 0xFFFFFFFF
    return np.array([*(b"%08x" % number for number in numbers.tolist()), b""], object)


_INTEGERS = np.array([*(b"%d" % number for number in range(LARGEST_INTEGER + 1)), b""], object)


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0.0, -logits))


def expected_auc(probabilities: np.ndarray) -> float:
    """The AUC that examples with these probabilities have on average when they are ranked by them: no ranking has more.

    The expected number of pairs of a click and another example that stand in the right order (half of one if they are equal),
    by the expected number of such pairs. (The mean of the quotient differs from this by order 1 / examples.)

    Args:
        probabilities: Of a click [examples], of independent examples.
    """
    values, places = np.unique(probabilities, return_inverse=True)
    clicks = np.bincount(places, probabilities, len(values))
    others = np.bincount(places, 1.0 - probabilities, len(values))
    # An example is no pair with itself.
    with_itself = np.bincount(places, probabilities * (1.0 - probabilities), len(values))
    below = np.cumsum(others) - others
    right = np.sum(clicks * below) + 0.5 * np.sum(clicks * others - with_itself)
    return float(right / (clicks.sum() * others.sum() - with_itself.sum()))


def expected_loss(probabilities: np.ndarray) -> float:
    """The mean cross-entropy in nats that they have on average: no other probabilities have less."""
    p = np.asarray(probabilities, np.float64)
    return float(-np.mean(p * np.log(p) + (1.0 - p) * np.log1p(-p)))
