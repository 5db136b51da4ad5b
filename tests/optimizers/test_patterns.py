"""Patterns that name variables."""

import logging

import pytest

from tf_simigrad.optimizers.patterns import BIASES_AND_NORMS, Patterns

pytestmark = pytest.mark.one_keras

PATHS = ["first/kernel", "first/bias", "norm/gamma", "norm/beta", "second/kernel"]


@pytest.mark.parametrize(
    ("patterns", "matched"),
    [
        ([], []),
        (["bias"], [1]),
        (("kernel$", "norm/"), [0, 2, 3, 4]),
        (["^first"], [0, 1]),
        (["(^|/)ke.nel"], [0, 4]),
        (["KERNEL", "(?i)GAMMA"], [2]),
        ([""], [0, 1, 2, 3, 4]),
    ],
    ids=str,
)
def test_a_pattern_is_searched_anywhere_in_the_path(patterns, matched):
    named = Patterns(patterns, "LARS", "exclude")
    assert [i for i, path in enumerate(PATHS) if named.match(path)] == matched
    assert named.patterns == tuple(patterns)


@pytest.mark.parametrize(
    ("path", "matched"),
    [
        ("dense/bias", True),
        ("bias", True),
        ("model/block_1/layer_normalization/gamma", True),
        ("model/layer_normalization/beta", True),
        ("rms_normalization/scale", True),
        ("lstm/lstm_cell/bias", True),
        ("dense/kernel", False),
        ("relative_attention_bias/embeddings", False),
        ("bias/kernel", False),
        ("gamma_dense/kernel", False),
        ("scaled_dense/kernel", False),
        ("swin/relative_position_bias_table", False),
        ("attention/unbias", False),
        ("layer/rescale", False),
        ("alphabeta/kernel", False),
        ("layer/alphabeta", False),
        ("layer/bias_kernel", False),
    ],
)
def test_biases_and_normalisations(path, matched):
    assert Patterns(BIASES_AND_NORMS, "LARS", "exclude").match(path) is matched


@pytest.mark.parametrize("patterns", ["bias", "", b"bias", None, 3, True, [1], ["bias", None], [b"bias"], {"bias": 1}])
def test_what_is_no_list_of_strings_is_refused(patterns):
    with pytest.raises(ValueError, match="LARS: exclude=.* must be a list of patterns, such as \\['bias'\\]") as error:
        Patterns(patterns, "LARS", "exclude")
    assert repr(patterns) in str(error.value)


@pytest.mark.parametrize("pattern", ["(kernel", "[", "*", "a{2,1}"])
def test_what_is_no_regular_expression_is_refused(pattern):
    with pytest.raises(ValueError, match="L2: the pattern .* in own is no regular expression: .*Escape") as error:
        Patterns(["bias", pattern], "L2", "own")
    assert repr(pattern) in str(error.value)


def test_what_matches_nothing_is_warned_of_unless_nobody_asked(caplog):
    patterns = Patterns(["kernel", "Bias", *BIASES_AND_NORMS, "^norm$"], "LAMB", "exclude_from_decay", BIASES_AND_NORMS)
    with caplog.at_level(logging.WARNING, logger="tf_simigrad"):
        patterns.build(["a/kernel", "b/kernel"])
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        f"LAMB: the pattern {pattern!r} in exclude_from_decay matches no trainable variable. They are: a/kernel, b/kernel"
        for pattern in ("Bias", "^norm$")
    ]
