"""Answers to questions about paragraphs: SQuAD 1.1 with BERT."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models.squad import TOKENS
from models.tasks.base import Data
from models.tasks.bert import INPUTS, BertTask


class SquadData(Data):
    """Windows for training in TFRecord files, questions for validation.

    Args:
        folder: From ``tools.prepare_data squad``.
        metadata: Of that folder.
    """

    def __init__(self, folder, metadata):
        self._folder, self._metadata = Path(folder), metadata
        self.examples = metadata["examples"]["train"]
        self.validation_examples = metadata["examples"]["validation"]
        self._questions = None

    def training(self, element, seed, initial_epoch, examples_per_epoch):
        from models import record_pipeline, squad_records

        files = [self._folder / name for name in self._metadata["files"]["train"]]
        parse = squad_records.parse(self._metadata["length"])
        return record_pipeline.epochs_dataset(files, self.examples, parse, element, seed, initial_epoch, examples_per_epoch)

    def questions(self):
        """The questions for validation, each with its windows."""
        from models import squad

        if self._questions is None:
            metadata = self._metadata
            windows = squad.Windows(self._folder / "vocab.txt", metadata["length"], metadata["stride"])
            found = squad.read(self._folder / metadata["files"]["validation"][0])
            self._questions = [(q, windows.of(q)) for q in found if isinstance(q, squad.Question)]
        return self._questions

    def validation(self, element, examples):
        import tensorflow as tf

        from models.input_pipeline import shared_by_element

        windows = [window for _, of_question in self.questions() for window in of_question][:examples]
        arrays = {name: np.stack([getattr(window, field) for window in windows]) for name, field in TOKENS.items()}
        dataset = tf.data.Dataset.from_tensor_slices(arrays).batch(element, drop_remainder=examples % element == 0)
        return shared_by_element(dataset.prefetch(tf.data.AUTOTUNE))


@dataclass(frozen=True)
class Squad(BertTask):
    """The first and the last token of the answer, in windows of a paragraph.

    Attributes:
        encoder: Its size: "tiny", "mini", "minilm", "base" or "large".
        length: Tokens of a window, as the data was prepared.
        stride: Tokens of the paragraph from one window to the next, as the data was prepared.
        vocabulary_size: Tokens, as the data was prepared.
    """

    encoder: str = "large"
    length: int = 384
    stride: int = 128
    vocabulary_size: int = 30_522

    kind = "squad"
    prepared_with = ("length", "stride", "vocabulary_size")
    data = SquadData
    headline = "f1"

    def __post_init__(self):
        self.check_encoder()
        if not 96 <= self.length <= 512:
            raise ValueError(f"length={self.length}: expected 96 to 512, room for a question and the positions that BERT knows")

    def build(self):
        from models import bert

        return bert.span_labeler(self.new_encoder())

    def compile_arguments(self):
        import tensorflow as tf

        names = ("start_positions", "end_positions")
        return {
            "loss": {name: tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True) for name in names},
            "loss_weights": dict.fromkeys(names, 0.5),
        }

    def element_spec(self, micro_batch_size):
        import tensorflow as tf

        tokens = tf.TensorSpec([micro_batch_size, self.length], tf.int32)
        place = tf.TensorSpec([micro_batch_size], tf.int32)
        return dict.fromkeys(TOKENS, tokens), {"start_positions": place, "end_positions": place}

    def judge(self, model, strategy):
        from models import evaluation

        def logits(features):
            starts, ends = model(features, training=False)
            return {"starts": starts, "ends": ends}

        outputs = evaluation.Outputs(strategy, logits)

        def judged(data, element, examples, progress):
            starts, ends = [], []
            for element_logits in outputs(data.validation(element, examples)):
                starts.extend(element_logits["starts"])
                ends.extend(element_logits["ends"])
                progress(len(element_logits["starts"]))
            return score_whole_questions(data.questions(), starts, ends)

        return judged

    def signatures(self, model):
        """Of tokens: the logits of their being the first and the last of the answer."""
        import tensorflow as tf

        @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32, name=name) for name in INPUTS])
        def label(input_word_ids, input_mask, input_type_ids):
            features = dict(zip(INPUTS, (input_word_ids, input_mask, input_type_ids), strict=True))
            starts, ends = model(features, training=False)
            return {"start_logits": starts, "end_logits": ends}

        return {"serving_default": label}

    def serving_inputs(self, data):
        return {"serving_default": self.features_to_try(data)}

    def encoder_of(self, model):
        return model.checkpoint_items["encoder"]


def score_whole_questions(questions, starts, ends):
    """Exact match and F1 of the questions all of whose windows have logits.

    Args:
        questions: (question, its windows), in the order of the logits.
        starts: Logits of the first token, of each window.
        ends: Logits of the last one.

    Raises:
        ValueError: If there is no such question.
    """
    from models import squad

    asked, answers, first = [], {}, 0
    for question, windows in questions:
        last = first + len(windows)
        if last > len(starts):
            break
        asked.append(question)
        answers[question.id] = squad.answer(windows, starts[first:last], ends[first:last], question.context)
        first = last
    if not asked:
        raise ValueError(
            f"validation_examples={len(starts)}: no question has all of its windows among them; the first one has "
            f"{len(questions[0][1])}; 0 takes all"
        )
    return squad.score(asked, answers)
