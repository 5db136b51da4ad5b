"""Pretraining of BERT on masked words and pairs of sentences."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models.tasks.base import Data
from models.tasks.bert import INPUTS, BertTask


class PretrainingData(Data):
    """Sequences in TFRecord files.

    Args:
        folder: From ``tools.prepare_data bert-pretraining``.
        metadata: Of that folder.
    """

    def __init__(self, folder, metadata):
        from models import bert_data

        self.files = {split: [Path(folder) / name for name in names] for split, names in metadata["files"].items()}
        self.examples = metadata["examples"]["train"]
        self.validation_examples = metadata["examples"]["validation"]
        self._parse = bert_data.parse(metadata["length"], metadata["predictions"])

    def training(self, element, seed, initial_epoch, examples_per_epoch):
        from models import record_pipeline

        files = self.files["train"]
        return record_pipeline.epochs_dataset(
            files, self.examples, self._parse, element, seed, initial_epoch, examples_per_epoch
        )

    def validation(self, element, examples):
        from models import record_pipeline

        return record_pipeline.evaluation_dataset(self.files["validation"], examples, self._parse, element)


@dataclass(frozen=True)
class BertPretraining(BertTask):
    """Masked words and next sentences.

    Attributes:
        encoder: Its size: "tiny", "mini", "minilm", "base" or "large".
        length: Tokens of a sequence, as the data was prepared.
        predictions: Most masked words of a sequence, as the data was prepared.
        vocabulary_size: Tokens, as the data was prepared.
    """

    encoder: str = "large"
    length: int = 128
    predictions: int = 20
    vocabulary_size: int = 30_522

    kind = "bert-pretraining"
    prepared_with = ("length", "predictions", "vocabulary_size")
    data = PretrainingData
    headline = "masked_word_nats"
    higher_is_better = False

    def __post_init__(self):
        self.check_encoder()
        if not 8 <= self.length <= 512:
            raise ValueError(f"length={self.length}: expected 8 to 512, the positions that BERT knows")
        if not 1 <= self.predictions < self.length:
            raise ValueError(f"predictions={self.predictions}: expected 1 to {self.length - 1}")

    @property
    def loss_fn(self):
        from models import bert

        return bert.pretraining_loss

    def build(self):
        from models import bert

        return bert.pretrainer(self.new_encoder())

    def compile_arguments(self):
        return {}

    def element_spec(self, micro_batch_size):
        from models import bert

        return bert.element_spec(micro_batch_size, self.length, self.predictions)

    def judge(self, model, strategy):
        from models import bert, evaluation

        outputs = evaluation.Outputs(strategy, lambda features: bert.pretraining_measures(model, features))

        def judged(data, element, examples, progress):
            sums, seen = {}, 0
            for measures in outputs(data.validation(element, examples)):
                for name, values in measures.items():
                    sums[name] = sums.get(name, 0.0) + float(np.sum(values, dtype=np.float64))
                seen += len(values)
                progress(len(values))
            return {
                "masked_word_nats": sums["nats"] / sums["masked_words"],
                "masked_word_accuracy": sums["correct_words"] / sums["masked_words"],
                "next_sentence_accuracy": sums["correct_sentences"] / seen,
            }

        return judged

    def signatures(self, model):
        """Functions of tokens: "serving_default" encodes; "masked_words" fills in what is masked, and judges the pair."""
        import tensorflow as tf

        from models import bert

        def tokens(name):
            return tf.TensorSpec([None, None], tf.int32, name=name)

        inputs = [tokens(name) for name in INPUTS]

        @tf.function(input_signature=inputs)
        def encode(input_word_ids, input_mask, input_type_ids):
            features = dict(zip(INPUTS, (input_word_ids, input_mask, input_type_ids), strict=True))
            encoded = model.encoder_network(features, training=False)
            return {name: encoded[name] for name in ("sequence_output", "pooled_output")}

        @tf.function(input_signature=[*inputs, tokens("masked_lm_positions")])
        def masked_words(input_word_ids, input_mask, input_type_ids, masked_lm_positions):
            features = dict(zip(INPUTS, (input_word_ids, input_mask, input_type_ids), strict=True))
            outputs = bert.call_pretrainer(model, {**features, "masked_lm_positions": masked_lm_positions}, training=False)
            words = tf.nn.log_softmax(tf.cast(outputs["mlm_logits"], tf.float32))
            return {
                "word_ids": tf.argmax(words, axis=-1, output_type=tf.int32),
                "log_probabilities": tf.reduce_max(words, axis=-1),
                "next_sentence_probabilities": tf.nn.softmax(tf.cast(outputs["next_sentence"], tf.float32)),
            }

        return {"serving_default": encode, "masked_words": masked_words}

    def serving_inputs(self, data):
        features = self.features_to_try(data)
        encode = {name: features[name] for name in INPUTS}
        return {
            "serving_default": encode,
            "masked_words": {**encode, "masked_lm_positions": features["masked_lm_positions"]},
        }

    def encoder_of(self, model):
        return model.encoder_network
