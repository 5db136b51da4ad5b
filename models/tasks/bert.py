"""What the tasks of a BERT have in common: tf_keras models, and data that was prepared for them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from models import prepared
from models.tasks.base import SERVING_EXAMPLES, Data, Task

ENCODERS = ("tiny", "mini", "minilm", "base", "large")
# Names of an encoder's inputs, each int32 [batch, length].
INPUTS = ("input_word_ids", "input_mask", "input_type_ids")


class BertTask(Task):
    """A task on prepared data, with an encoder of one of a few sizes.

    Attributes:
        kind: Of the data, as ``tools.prepare_data`` calls it.
        prepared_with: The settings that the data has to have in common with the task.
        data: From the folder and its metadata to the data.
    """

    kind: ClassVar[str]
    prepared_with: ClassVar[tuple[str, ...]]
    data: ClassVar[Callable[[Any, dict], Data]]

    only_keras = "tf_keras"
    keras_validates = False

    def check_encoder(self):
        if self.encoder not in ENCODERS:
            raise ValueError(f"encoder={self.encoder!r}: expected one of {', '.join(ENCODERS)}")

    def check_data(self, data_dir):
        settings = {name: getattr(self, name) for name in self.prepared_with}
        prepared.check_settings(data_dir, prepared.read_metadata(data_dir, self.kind), **settings)

    def data_fingerprint(self, data_dir):
        return prepared.fingerprint(data_dir)

    def load(self, data_dir):
        return self.data(data_dir, prepared.read_metadata(data_dir, self.kind))

    def new_encoder(self):
        from models import bert

        return bert.encoder(bert.SIZES[self.encoder], vocabulary=self.vocabulary_size)

    def features_to_try(self, data):
        """The first few examples for validation, by name."""
        examples = min(SERVING_EXAMPLES, data.validation_examples)
        return next(iter(data.validation(examples, examples).as_numpy_iterator()))

    def assets(self, data_dir):
        return [Path(data_dir) / "vocab.txt"]
