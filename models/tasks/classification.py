"""What the tasks that give each example one of several classes have in common."""

from collections.abc import Callable
from typing import Any

from models.tasks.base import Task


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
