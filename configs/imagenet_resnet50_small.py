"""SimiGrad on a small residual network with CIFAR-10 as JPEG files of 64 pixels, read as ImageNet is.

Paper:    Qin et al., "SimiGrad: Fine-Grained Adaptive Batching for Large Scale Training using Gradient Similarity
          Measurement", NeurIPS 2021, with its momentum of 0.875, label smoothing 0.1, cosine after a warm-up, square-root rule.
          Network and budget are smaller than the paper's: ResNet-18 v1.5 half as wide, 6 epochs of CIFAR-10's 50,000 training
          images, crops of 25 to 100 %.
Command:  python -m tools.prepare_data cifar10-jpeg --data-dir DIR --output JPEG
          python -m tools.prepare_data imagenet --train JPEG/train --validation JPEG/validation --output IMAGES
          python -m tools.train imagenet_resnet50_small --data-dir IMAGES
          with --set "policy=FixedBatch(batch_size=384)", the multiple of the micro-batch that is nearest to SimiGrad's mean
Hardware: two CPU cores.
Measured: 2026-12-01, TensorFlow 2.20.0, tf_keras 2.20.1, one replica, seed 0 (one seed), the same 299,904 examples in each row,
          10,000 for validation. The machine did other work beside: the seconds are upper bounds, and do not compare the rows.
          "Off bounds": updates whose batch is neither the smallest nor the largest.

          batch               top-1   top-5   updates  mean batch  largest  off bounds  size changes  seconds
          SimiGrad 128..4096  71.5 %  97.5 %      744         403    3,072        68 %           375      798
          fixed 384           72.5 %  97.8 %      781         384      384           -             0      585

          The batch rises from 128 to 3,072, most of it in the last two epochs, where the rate falls: SimiGrad loses a point to
          the fixed batch of the same mean at this budget.
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
