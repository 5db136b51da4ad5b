"""DLRM on Criteo's click logs, or on generated ones of the same layout."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models import criteo, prepared
from models.tasks.base import SERVING_EXAMPLES, Data, Task

KIND = "criteo"


class CriteoData(Data):
    """Examples in TFRecord files, a block of them in each record.

    Args:
        folder: From ``tools.prepare_data criteo``.
        metadata: Of that folder.
    """

    def __init__(self, folder, metadata):
        self.files = {split: [Path(folder) / name for name in names] for split, names in metadata["files"].items()}
        self.examples = metadata["examples"]["train"]
        self.validation_examples = metadata["examples"]["validation"]

    def training(self, element, seed, initial_epoch, examples_per_epoch):
        from models import criteo_pipeline

        files = self.files["train"]
        return criteo_pipeline.epochs_dataset(files, self.examples, element, seed, initial_epoch, examples_per_epoch)

    def validation(self, element, examples):
        from models import criteo_pipeline

        return criteo_pipeline.evaluation_dataset(self.files["validation"], examples, element)


@dataclass(frozen=True)
class Dlrm(Task):
    """Whether an advertisement is clicked on.

    Attributes:
        table_sizes: Rows of each of the 26 tables, as the data was prepared; a single number stands for all of them.
        embedding_dimension: Of their vectors.
        bottom_mlp: Widths of the layers between the dense features and the interaction; the last one is that dimension.
        top_mlp: Widths of the layers between the interaction and the logit; the last one is 1.
    """

    table_sizes: int | tuple = criteo.TERABYTE_TABLES
    embedding_dimension: int = 64
    bottom_mlp: tuple = (512, 256, 64)
    top_mlp: tuple = (512, 512, 256, 1)

    only_keras = "tf_keras"
    headline = "auc"
    keras_validates = False

    def __post_init__(self):
        # JSON has lists for tuples.
        every = {"table_sizes": criteo.every_table(self.table_sizes), "bottom_mlp": self.bottom_mlp, "top_mlp": self.top_mlp}
        for name, value in every.items():
            object.__setattr__(self, name, tuple(value))
        for name, last in (("bottom_mlp", self.embedding_dimension), ("top_mlp", 1)):
            widths = getattr(self, name)
            if not all(type(width) is int and width > 0 for width in widths) or widths[-1:] != (last,):
                raise ValueError(f"{name}={widths}: expected widths of layers, the last one {last}")

    @property
    def loss_fn(self):
        from models import dlrm

        return dlrm.loss

    def check_data(self, data_dir):
        prepared.check_settings(data_dir, prepared.read_metadata(data_dir, KIND), table_sizes=list(self.table_sizes))

    def data_fingerprint(self, data_dir):
        return prepared.fingerprint(data_dir)

    def load(self, data_dir):
        return CriteoData(data_dir, prepared.read_metadata(data_dir, KIND))

    def ceiling(self, data_dir):
        ceiling = prepared.read_metadata(data_dir, KIND)["ceiling"]
        return None if ceiling is None else ceiling["expected_auc"]

    def build(self):
        from models import dlrm

        return dlrm.dlrm(self.table_sizes, self.embedding_dimension, self.bottom_mlp, self.top_mlp)

    def compile_arguments(self):
        return {}

    def element_spec(self, micro_batch_size):
        from models import criteo_pipeline

        return criteo_pipeline.element_spec(micro_batch_size)

    def judge(self, model, strategy):
        from models import dlrm, evaluation

        def step(element):
            features, labels = element
            return {"logits": dlrm.logits(model, features), "labels": labels}

        outputs = evaluation.Outputs(strategy, step)

        def judged(data, element, examples, progress):
            found = []
            for of_element in outputs(data.validation(element, examples)):
                found.append((of_element["labels"], of_element["logits"]))
                progress(len(of_element["labels"]))
            return measures(*(np.concatenate(arrays) for arrays in zip(*found, strict=True)))

        return judged

    def signatures(self, model):
        """Of dense features and rows of tables, as ``models.criteo`` makes them of Criteo's lines: clicks."""
        import tensorflow as tf

        dense = tf.TensorSpec([None, criteo.DENSE], tf.float32, name="dense_features")
        sparse = tf.TensorSpec([None, criteo.CATEGORICAL], tf.int32, name="sparse_features")

        @tf.function(input_signature=[dense, sparse])
        def click(dense_features, sparse_features):
            columns = tf.unstack(sparse_features, axis=1)
            rows = {str(column): of_column for column, of_column in enumerate(columns)}
            logits = model({"dense_features": dense_features, "sparse_features": rows}, training=False)
            return {"logits": logits, "probabilities": tf.sigmoid(logits)}

        return {"serving_default": click}

    def serving_inputs(self, data):
        examples = min(SERVING_EXAMPLES, data.validation_examples)
        features, _ = next(iter(data.validation(examples, examples).as_numpy_iterator()))
        rows = [features["sparse_features"][str(column)] for column in range(criteo.CATEGORICAL)]
        inputs = {"dense_features": features["dense_features"], "sparse_features": np.stack(rows, axis=1)}
        return {"serving_default": inputs}


def measures(labels, logits):
    """What a model is judged by; all but the click rate are nan for logits that are not all finite, of a diverged model.

    Args:
        labels: 0 or 1, [examples].
        logits: Same shape.

    Returns:
        "auc"; "loss", the mean cross-entropy in nats; "click_rate" of the labels; "predicted_click_rate".

    Raises:
        ValueError: If the labels are all the same, so that there is no AUC.
    """
    from sklearn.metrics import roc_auc_score

    clicks = float(np.mean(labels, dtype=np.float64))
    if not 0 < clicks < 1:
        raise ValueError(
            f"validation_examples={len(labels)}: {'all' if clicks else 'none'} of them are clicks, and an AUC needs both; "
            "0 takes all that there are"
        )
    logits = np.asarray(logits, np.float64)
    if not np.isfinite(logits).all():
        return {"auc": np.nan, "loss": np.nan, "click_rate": clicks, "predicted_click_rate": np.nan}
    return {
        "auc": float(roc_auc_score(labels, logits)),
        "loss": float(np.mean(np.logaddexp(0.0, logits) - labels * logits)),
        "click_rate": clicks,
        # The sigmoid without overflow.
        "predicted_click_rate": float(np.mean(np.exp(-np.logaddexp(0.0, -logits)))),
    }
