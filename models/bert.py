"""BERT with its two pretraining tasks, from tf-models-official (tf_keras models, whatever Keras the process uses)."""

from typing import NamedTuple

import tensorflow as tf


class Size(NamedTuple):
    """Shape of an encoder: layers, width, heads, width of the feed-forward layers."""

    layers: int
    hidden: int
    heads: int
    inner: int


SIZES = {"tiny": Size(2, 128, 2, 512), "base": Size(12, 768, 12, 3072), "large": Size(24, 1024, 16, 4096)}
VOCABULARY = 30_522
DROPOUT = 0.1


def build(size: Size, length: int, vocabulary: int = VOCABULARY):
    """Builds an encoder with the heads for masked words and for the next sentence.

    Args:
        size: One of `SIZES`, or another.
        length: Longest sequence in tokens.
        vocabulary: Number of tokens.

    Returns:
        A `BertPretrainerV2`: its inputs are the features of `element_spec`, its outputs "mlm_logits" and "next_sentence".

    References:
        Devlin, Chang, Lee, Toutanova, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", 2018.
    """
    import tf_keras
    from official.nlp.modeling import layers, models, networks

    initializer = tf_keras.initializers.TruncatedNormal(stddev=0.02)
    encoder = networks.BertEncoder(
        vocab_size=vocabulary,
        hidden_size=size.hidden,
        num_layers=size.layers,
        num_attention_heads=size.heads,
        inner_dim=size.inner,
        max_sequence_length=length,
        type_vocab_size=2,
        output_dropout=DROPOUT,
        attention_dropout=DROPOUT,
        initializer=initializer,
        dict_outputs=True,
    )
    next_sentence = layers.ClassificationHead(
        inner_dim=size.hidden, num_classes=2, dropout_rate=DROPOUT, initializer=initializer, name="next_sentence"
    )
    return models.BertPretrainerV2(
        encoder, mlm_activation="gelu", mlm_initializer=initializer, classification_heads=[next_sentence]
    )


def element_spec(micro_batch_size: int, length: int, predictions: int) -> dict:
    """What one replica is given in a micro-step: features and labels of both tasks, int32 but for the weights.

    Args:
        micro_batch_size: Sequences.
        length: Tokens of a sequence.
        predictions: Masked words of a sequence, those beyond its own with weight 0.
    """
    tokens, masked = [micro_batch_size, length], [micro_batch_size, predictions]
    return {
        "input_word_ids": tf.TensorSpec(tokens, tf.int32),
        "input_mask": tf.TensorSpec(tokens, tf.int32),
        "input_type_ids": tf.TensorSpec(tokens, tf.int32),
        "masked_lm_positions": tf.TensorSpec(masked, tf.int32),
        "masked_lm_ids": tf.TensorSpec(masked, tf.int32),
        "masked_lm_weights": tf.TensorSpec(masked, tf.float32),
        "next_sentence_labels": tf.TensorSpec([micro_batch_size], tf.int32),
    }


def pretraining_loss(model, features):
    """Mean cross-entropy of the masked words, plus that of the next sentence.

    Args:
        model: From `build`.
        features: As `element_spec` says.

    Returns:
        (mean loss, number of masked words): as `AdaptiveBatch(loss_fn=...)` takes it. The second task's mean is over the
        sequences of the micro-batch, and is weighted by its masked words like the first's.
    """
    names = ("input_word_ids", "input_mask", "input_type_ids", "masked_lm_positions")
    outputs = model({name: features[name] for name in names}, training=True)
    words = tf.nn.sparse_softmax_cross_entropy_with_logits(
        features["masked_lm_ids"], tf.cast(outputs["mlm_logits"], tf.float32)
    )
    weights = tf.cast(features["masked_lm_weights"], tf.float32)
    count = tf.reduce_sum(weights)
    sentences = tf.nn.sparse_softmax_cross_entropy_with_logits(
        features["next_sentence_labels"], tf.cast(outputs["next_sentence"], tf.float32)
    )
    return tf.math.divide_no_nan(tf.reduce_sum(words * weights), count) + tf.reduce_mean(sentences), count
