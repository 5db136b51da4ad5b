"""DLRM: tensorflow-recommenders' ranking model as tf-models-official assembles it, with plain embedding tables.

To be imported only where TensorFlow uses tf_keras, as tensorflow-recommenders wants it.

References:
    Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems", 2019. The assembly is
    that of official/recommendation/ranking/task.py.
"""

import math
from collections.abc import Sequence

import tensorflow as tf
import tensorflow_recommenders as tfrs
import tf_keras

from models.criteo import DENSE


class Tables(tf_keras.layers.Layer):
    """Looks each feature up in a table of its own: {name: ids [batch]} to {name: vectors [batch, dimension]}.

    Args:
        sizes: Rows of the tables of the features "0", "1", ...
        dimension: Of the vectors.
    """

    def __init__(self, sizes: Sequence[int], dimension: int) -> None:
        super().__init__(name="tables")
        # A list, in which weights are in the order of the numbers.
        self._tables = [
            tf_keras.layers.Embedding(
                size,
                dimension,
                embeddings_initializer=tf_keras.initializers.TruncatedNormal(stddev=1 / math.sqrt(dimension)),
                name=f"table_{number:02d}",
            )
            for number, size in enumerate(sizes)
        ]

    def call(self, ids):
        return {str(number): table(ids[str(number)]) for number, table in enumerate(self._tables)}


class Dlrm(tfrs.experimental.models.Ranking):
    """The ranking model without its squeeze of the embeddings, which would take a batch of 1 for a dimension too many."""

    def call(self, inputs):
        """Logits, float32 [batch]."""
        dense = self._bottom_stack(inputs["dense_features"])
        vectors = tf.nest.flatten(self._embedding_layer(inputs["sparse_features"]))
        interactions = self._feature_interaction([*vectors, dense])
        logits = self._top_stack(tf.concat([dense, interactions], axis=1))
        return tf.cast(tf.reshape(logits, [-1]), tf.float32)


def dlrm(table_sizes: Sequence[int], dimension: int, bottom_mlp: Sequence[int], top_mlp: Sequence[int]) -> Dlrm:
    """Builds the model, with all of its variables.

    The interaction is official's, whose shape is static: the matrix of the products of all vectors, with zeros in place of
    those of a vector with itself and with the ones after it. Weights of the top MLP that see these zeros stay as they began.

    Args:
        table_sizes: Rows of the table of each categorical feature.
        dimension: Of the embeddings.
        bottom_mlp: Widths of its layers, all with ReLU; the last one is ``dimension``.
        top_mlp: Widths of its layers, with ReLU between them; the last one is 1, the logit.

    Returns:
        {"dense_features": float32 [batch, 13], "sparse_features": {"0": int32 [batch], ...}} to logits, float32 [batch].
    """
    # Without metrics, which would be updated in every micro-step.
    task = tfrs.tasks.Ranking(
        loss=tf_keras.losses.BinaryCrossentropy(from_logits=True, reduction=tf_keras.losses.Reduction.NONE)
    )
    model = Dlrm(
        embedding_layer=Tables(table_sizes, dimension),
        bottom_stack=tfrs.layers.blocks.MLP(bottom_mlp, final_activation="relu"),
        feature_interaction=tfrs.layers.feature_interaction.DotInteraction(skip_gather=True),
        top_stack=tfrs.layers.blocks.MLP(top_mlp),
        task=task,
    )
    # Called once, on symbols, so that all variables are there; the task is a layer too, and has none.
    sparse = {str(number): tf_keras.Input([], dtype=tf.int32) for number in range(len(table_sizes))}
    model({"dense_features": tf_keras.Input([DENSE]), "sparse_features": sparse})
    task.build(None)
    return model


def loss(model: Dlrm, data: tuple) -> tf.Tensor:
    """Mean cross-entropy of the clicks of one micro-batch on one replica, as `AdaptiveBatch(loss_fn=...)` takes it.

    Args:
        model: From `dlrm`.
        data: (features, labels).
    """
    # The model's own is divided by the number of replicas, for gradients that are added up.
    return model.compute_loss(data, training=True) * tf.distribute.get_strategy().num_replicas_in_sync


def logits(model: Dlrm, features: dict) -> tf.Tensor:
    """What the model gives; also for no examples, which is what some replica may get of a last, small element.

    Args:
        model: From `dlrm`.
        features: Of examples.

    Returns:
        Float32 [examples].
    """
    # With an example more: the interaction cannot tell the shape of nothing.
    more = tf.nest.map_structure(lambda t: tf.pad(t, [[0, 1]] + [[0, 0]] * (t.shape.rank - 1)), features)
    return model(more, training=False)[:-1]
