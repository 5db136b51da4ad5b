"""TPUStrategy under Keras 3: refused before training, with the way out."""

import pytest

import tf_simigrad as sg
from tf_simigrad.compat import keras_private, tpu_description

pytestmark = pytest.mark.skipif(not keras_private.KERAS_3, reason="about Keras 3")


def test_keras_3_is_refused(tf):
    strategy = tpu_description.described_strategy(1)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="TPUStrategy under Keras 3.*TF_USE_LEGACY_KERAS=1"):
        sg.AdaptiveBatch(sg.FixedBatch(8)).check(model)
