"""VR-LARS on ImageNet with ResNet-50 v1.5 at batches of 32k, 64k and 96k.

Paper:    Jiang et al., "Accelerating Large Batch Training via Gradient Signal to Noise Ratio (GSNR)", arXiv 2309.13681: top-1
          of VR-LARS 76.81, 75.86 and 74.82 % at 32k, 64k and 96k (LARS 76.60, 75.30, 74.30); gamma 0.1, the groups are the
          devices, square-root rule. Its rates were not to be had: 29 at 32k with a warm-up of 18 epochs, cosine, decay 1e-4
          and label smoothing 0.1 are our choice.
Command:  python -m tools.train imagenet_resnet50_vrgd --data-dir IMAGENET --strategy tpu      (IMAGENET: imagenet_resnet50)
          At 64k: --set policy.batch_size=65536, at 96k: --set policy.batch_size=98304; the rate follows by the square-root
          rule. The baseline: --set vrgd_gamma=0.
Hardware: 8 devices or more. Not run here; `--dry-run` counts, the small twin is imagenet_resnet50_vrgd_small.
Dry run:  25,557,032 parameters; 24.3 GFLOP an example, forward and backward (matrix products), 2026-12-01.
"""

import tf_simigrad as sg
from configs.experiment import Experiment
from models.tasks import ImageNet


def get_config() -> Experiment:
    return Experiment(
        name="imagenet_resnet50_vrgd",
        task=ImageNet(depth=50, image_size=224, classes=1000, label_smoothing=0.1),
        policy=sg.FixedBatch(batch_size=32_768),
        epochs=90,
        micro_batch_size=128,
        reference_batch_size=32_768,
        learning_rate=29.0,
        optimizer="lars",
        momentum=0.9,
        weight_decay=1e-4,
        vrgd_gamma=0.1,
        vrgd_groups="replicas",
        schedule="cosine",
        warmup_epochs=18,
        precision="bfloat16",
        validation_batch_size=2000,
    )
