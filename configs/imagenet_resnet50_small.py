"""SimiGrad on a small residual network with CIFAR-10 as JPEG files of 64 pixels, read as ImageNet is.

Paper:    draft
Command:  python -m tools.train imagenet_resnet50_small
Hardware: two CPU cores.
"""

import tf_simigrad as sg
from configs.experiment import Experiment
from models.tasks import ImageNet


def get_config() -> Experiment:
    return Experiment(
        name="imagenet_resnet50_small",
        task=ImageNet(depth=18, width=0.5, image_size=64, classes=10, label_smoothing=0.1, min_crop_area=0.25),
        policy=sg.SimiGrad(target_similarity=0.2, min_batch_size=128, max_batch_size=4096),
        epochs=6,
        micro_batch_size=64,
        reference_batch_size=128,
        learning_rate=0.1,
        momentum=0.875,
        l2=1e-4,
        schedule="cosine",
        warmup_epochs=1,
        validation_batch_size=500,
    )
