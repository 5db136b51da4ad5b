"""SimiGrad on ImageNet with ResNet-50 v1.5.

Paper:    Qin et al., "SimiGrad: Fine-Grained Adaptive Batching for Large Scale Training using Gradient Similarity
          Measurement", NeurIPS 2021, and its scripts: SGD 2.048 / 0.875, L2 3.05e-5, label smoothing 0.1, cosine with 8 epochs
          of warm-up in 90, batch 2,048 to start with and at least. Its target and its upper bound here were not to be had: 0.2
          and 65,536 are our choice, as are the micro-batch of 128 and that every weight decays.
Command:  python -m tools.prepare_data imagenet --train TRAIN --validation VALIDATION --shards 1024 --output IMAGENET
          (folders of JPEG files, one per class; or --tfds imagenet2012 --tfds-dir DIR)
          python -m tools.train imagenet_resnet50 --data-dir IMAGENET --strategy mirrored
          VRGD's training is imagenet_resnet50_vrgd.
Hardware: several GPUs or a TPU. Not run here; `--dry-run` counts, the small twin is imagenet_resnet50_small.
Dry run:  25,557,032 parameters; 24.3 GFLOP an example, forward and backward (matrix products), 2026-12-01.
"""

import tf_simigrad as sg
from configs.experiment import Experiment
from models.tasks import ImageNet


def get_config() -> Experiment:
    return Experiment(
        name="imagenet_resnet50",
        task=ImageNet(depth=50, image_size=224, classes=1000, label_smoothing=0.1),
        policy=sg.SimiGrad(target_similarity=0.2, min_batch_size=2048, max_batch_size=65_536),
        epochs=90,
        micro_batch_size=128,
        reference_batch_size=2048,
        learning_rate=2.048,
        momentum=0.875,
        l2=3.05e-5,
        schedule="cosine",
        warmup_epochs=8,
        precision="bfloat16",
        validation_batch_size=2000,
    )
