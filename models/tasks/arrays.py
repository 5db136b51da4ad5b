"""Classification of examples that fit into memory as arrays."""

from collections.abc import Callable
from typing import Any

import numpy as np

from models.tasks.base import SERVING_EXAMPLES, Data, Task


class ArrayData(Data):
    """Arrays of examples and labels.

    Args:
        arrays: ((x_train, y_train), (x_test, y_test)).
        standardise: See ``input_pipeline.epochs_dataset``, or None.
        augment: The same.
    """

    def __init__(self, arrays: tuple, standardise: Callable | None = None, augment: Callable | None = None) -> None:
        self.train, self.test = arrays
        self.standardise, self.augment = standardise, augment
        self.examples, self.validation_examples = len(self.train[0]), len(self.test[0])

    def check_epoch(self, examples_per_epoch):
        if examples_per_epoch:
            raise ValueError(
                f"examples_per_epoch={examples_per_epoch}: this task goes through all of its {self.examples} training examples "
                "in every epoch; set 0"
            )

    def training(self, element, seed, initial_epoch, examples_per_epoch):
        from models import input_pipeline

        return input_pipeline.epochs_dataset(*self.train, element, seed, initial_epoch, self.augment, self.standardise)

    def validation(self, element, examples):
        from models import input_pipeline

        x, y = self.test
        return input_pipeline.evaluation_dataset(x[:examples], y[:examples], element, self.standardise)


class Classification(Task):
    """One label of each example, judged by its accuracy."""

    headline = "accuracy"

    def compile_arguments(self):
        import tensorflow as tf

        return {
            "loss": tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "metrics": [tf.keras.metrics.SparseCategoricalAccuracy("accuracy")],
        }

    def judge(self, model, strategy):
        def judged(data, element, examples, progress):
            import tensorflow as tf

            told = tf.keras.callbacks.LambdaCallback()
            # The last element may hold fewer.
            told.on_test_batch_end = lambda batch, logs=None: progress(min(element, examples - batch * element))
            dataset = data.validation(element, examples)
            measures = model.evaluate(dataset, verbose=0, return_dict=True, callbacks=[told])
            return {name: float(value) for name, value in measures.items()}

        return judged

    def serving_function(self, model: Any, image: Any, standardise: Callable | None = None) -> Any:
        """A signature from images, of the shape and type of ``image``, to logits, probabilities and the likeliest class."""
        import tensorflow as tf

        @tf.function(input_signature=[tf.TensorSpec([None, *image.shape], image.dtype, name="images")])
        def classify(images):
            logits = model(standardise(images) if standardise else images, training=False)
            return {
                "logits": logits,
                "probabilities": tf.nn.softmax(logits),
                "classes": tf.argmax(logits, axis=1, output_type=tf.int32),
            }

        return classify

    def serving_inputs(self, data):
        return {"serving_default": {"images": np.asarray(data.test[0][:SERVING_EXAMPLES])}}
