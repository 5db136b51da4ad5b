"""BERT, its pretraining and its labelling of spans, from tf-models-official (tf_keras, whatever Keras the process uses)."""

import warnings
from typing import NamedTuple

import tensorflow as tf


class Size(NamedTuple):
    """Shape of an encoder.

    Attributes:
        layers: Number of layers.
        hidden: Width.
        heads: Attention heads of a layer.
        inner: Width of the feed-forward layers.
        exact_gelu: Whether GELU is the one with the error function; else its tanh approximation, as in BERT's own code.
    """

    layers: int
    hidden: int
    heads: int
    inner: int
    exact_gelu: bool = False


SIZES = {
    "tiny": Size(2, 128, 2, 512),
    "mini": Size(4, 256, 4, 1024),
    "minilm": Size(6, 384, 12, 1536, exact_gelu=True),
    "base": Size(12, 768, 12, 3072),
    "large": Size(24, 1024, 16, 4096),
}
VOCABULARY = 30_522
POSITIONS = 512
DROPOUT = 0.1


def initializer():
    """BERT's for all kernels: normal, standard deviation 0.02, cut off at two of them."""
    import tf_keras

    return tf_keras.initializers.TruncatedNormal(stddev=0.02)


def exact_gelu(x):
    """GELU with the error function."""
    return tf.nn.gelu(x, approximate=False)


def tanh_gelu(x):
    """GELU's approximation by tanh."""
    return tf.nn.gelu(x, approximate=True)


def encoder(size: Size, vocabulary: int = VOCABULARY, positions: int = POSITIONS, dropout: float = DROPOUT):
    """Builds an encoder.

    Args:
        size: One of `SIZES`, or another.
        vocabulary: Number of tokens.
        positions: Longest sequence in tokens that has an embedding of its positions.
        dropout: Share of activations and of attention that training drops.

    Returns:
        A `BertEncoder`: {"input_word_ids", "input_mask", "input_type_ids"}, int32 [batch, length], to "sequence_output",
        float32 [batch, length, hidden], and "pooled_output", [batch, hidden].

    References:
        Devlin, Chang, Lee, Toutanova, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", 2018.
    """
    import tf_keras
    from official.nlp.modeling import networks

    # Dropout draws from generators whose state is saved with the model, so that a resumed training goes on with the same masks.
    tf_keras.backend.experimental.enable_tf_random_generator()
    return networks.BertEncoder(
        vocab_size=vocabulary,
        hidden_size=size.hidden,
        num_layers=size.layers,
        num_attention_heads=size.heads,
        inner_dim=size.inner,
        # Functions with names, by which a configuration tells them apart.
        inner_activation=exact_gelu if size.exact_gelu else tanh_gelu,
        max_sequence_length=positions,
        type_vocab_size=2,
        output_dropout=dropout,
        attention_dropout=dropout,
        initializer=initializer(),
        dict_outputs=True,
    )


def pretrainer(encoder):
    """Adds the heads for masked words and for the next sentence.

    Args:
        encoder: From `encoder`.

    Returns:
        A `BertPretrainerV2`: the inputs of the encoder and "masked_lm_positions", int32 [batch, predictions], to "mlm_logits",
        [batch, predictions, vocabulary], and "next_sentence", [batch, 2].
    """
    from official.nlp.modeling import layers, models

    next_sentence = layers.ClassificationHead(
        inner_dim=encoder.get_config()["hidden_size"],
        num_classes=2,
        dropout_rate=encoder.get_config()["output_dropout"],
        initializer=initializer(),
        name="next_sentence",
    )
    model = models.BertPretrainerV2(
        encoder, mlm_activation="gelu", mlm_initializer=initializer(), classification_heads=[next_sentence]
    )
    # Called once, on symbols, so that all of its variables are there.
    call_pretrainer(model, {tensor.name: tensor for tensor in model.inputs}, training=False)
    return model


def span_labeler(encoder):
    """Adds the head that finds the first and the last token of an answer.

    Args:
        encoder: From `encoder`.

    Returns:
        A `BertSpanLabeler`: the inputs of the encoder to [start logits, end logits], each float32 [batch, length].
    """
    from official.nlp.modeling import models

    return models.BertSpanLabeler(encoder, initializer=initializer())


def element_spec(micro_batch_size: int, length: int, predictions: int) -> dict:
    """What one replica is given in a micro-step of pretraining: features and labels of both tasks, int32 but for the weights.

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


PRETRAINING_INPUTS = ("input_word_ids", "input_mask", "input_type_ids", "masked_lm_positions")


def call_pretrainer(model, inputs, training):
    """What the model gives, without Keras's warning that it gives its encoder the positions of the masked words too."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Input dict contained keys", UserWarning)
        return model(inputs, training=training)


def pretraining_losses(model, features, training):
    """Cross-entropies of both tasks, of each word and of each sequence.

    Args:
        model: From `pretrainer`.
        features: As `element_spec` says.
        training: Whether dropout is on.

    Returns:
        (words, sentences, outputs): float32 [batch, predictions], [batch], and what the model gave. Words of weight 0 included.
    """
    outputs = call_pretrainer(model, {name: features[name] for name in PRETRAINING_INPUTS}, training)
    words = tf.nn.sparse_softmax_cross_entropy_with_logits(
        features["masked_lm_ids"], tf.cast(outputs["mlm_logits"], tf.float32)
    )
    sentences = tf.nn.sparse_softmax_cross_entropy_with_logits(
        features["next_sentence_labels"], tf.cast(outputs["next_sentence"], tf.float32)
    )
    return words, sentences, outputs


def pretraining_loss(model, features):
    """Mean cross-entropy of the masked words, plus that of the next sentence.

    Args:
        model: From `pretrainer`.
        features: As `element_spec` says.

    Returns:
        (mean loss, number of masked words): as `AdaptiveBatch(loss_fn=...)` takes it. The second task's mean is over the
        sequences of the micro-batch, and is weighted by its masked words like the first's.
    """
    words, sentences, _ = pretraining_losses(model, features, training=True)
    weights = tf.cast(features["masked_lm_weights"], tf.float32)
    count = tf.reduce_sum(weights)
    return tf.math.divide_no_nan(tf.reduce_sum(words * weights), count) + tf.reduce_mean(sentences), count


def pretraining_measures(model, features):
    """What validation of pretraining adds up, of each sequence.

    Args:
        model: From `pretrainer`.
        features: As `element_spec` says.

    Returns:
        A dictionary of float32 [batch]: "masked_words" (how many), "nats" (sum of their cross-entropies), "correct_words",
        "correct_sentences" (0 or 1).
    """
    words, _, outputs = pretraining_losses(model, features, training=False)
    weights = tf.cast(features["masked_lm_weights"], tf.float32)
    hits = tf.equal(tf.argmax(outputs["mlm_logits"], -1, tf.int32), features["masked_lm_ids"])
    sentences = tf.equal(tf.argmax(outputs["next_sentence"], -1, tf.int32), features["next_sentence_labels"])
    return {
        "masked_words": tf.reduce_sum(weights, axis=1),
        "nats": tf.reduce_sum(words * weights, axis=1),
        "correct_words": tf.reduce_sum(tf.cast(hits, tf.float32) * weights, axis=1),
        "correct_sentences": tf.cast(sentences, tf.float32),
    }
