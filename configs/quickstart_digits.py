"""SimiGrad on scikit-learn's handwritten digits: the shortest run that shows a batch growing.

Paper:    Qin et al., "SimiGrad: Fine-Grained Adaptive Batching for Large Scale Training using Gradient Similarity
          Measurement", NeurIPS 2021 (the method; the paper does not use this data set).
Command:  python -m tools.train quickstart_digits --strategy mirrored --devices 2
Hardware: any; meant for two CPU cores, under a minute.
"""

import tf_simigrad as sg
from configs.experiment import Experiment
from models.tasks import Digits


def get_config() -> Experiment:
    return Experiment(
        name="quickstart_digits",
        task=Digits(),
        policy=sg.SimiGrad(target_similarity=0.2, min_batch_size=64, max_batch_size=512),
        epochs=20,
        micro_batch_size=32,
        reference_batch_size=64,
        learning_rate=0.1,
        momentum=0.9,
        l2=1e-4,
        validation_batch_size=360,
    )
