"""VR-SGD on DLRM with Criteo's terabyte of clicks, one pass, at batches of 32k to 512k.

Paper:    Jiang et al., "Accelerating Large Batch Training via Gradient Signal to Noise Ratio (GSNR)", arXiv 2309.13681: AUC of
          VR-SGD .8026, .8048, .8042, .8023 and .8013 at 32k, 64k, 128k, 256k and 512k (SGD .8014 .8025 .8021 .7827 .7787);
          gamma 0.1, square-root rule. Sizes and rate were not to be had: vectors of 64, the layers, the rate of 1.25 at 16,384
          and a long warm-up are those of tf-models-official's dlrm_criteo; tables of at most 10 million rows, a constant rate
          after the warm-up and a validation every 105 million examples are our choice.
Command:  python -m tools.prepare_data criteo --train day_0 ... day_22 --validation day_23 --shards 4096 --output CRITEO
          python -m tools.train dlrm_criteo --data-dir CRITEO --strategy mirrored
          At 512k: --set policy.batch_size=524288; the rate follows by the square-root rule. The baseline: --set vrgd_gamma=0.
          All of it, 15 runs one after the other: python -m tools.vrgd_table dlrm_criteo --data-dir CRITEO --optimizers sgd
          --batch-sizes 32768,65536,131072,262144,524288
Hardware: GPUs that hold 14 GB of tables each (no optimizer state beside them). Not run here; `--dry-run` counts, the small twin
          is dlrm_criteo_small. Tables are whole on every replica: this is data parallelism, and sharded embeddings are not.
Dry run:  3,463,257,857 parameters; 16.3 MFLOP an example, forward and backward (matrix products), 2026-12-01.
"""

import tf_simigrad as sg
from configs.experiment import Experiment
from models.tasks import Dlrm


def get_config() -> Experiment:
    return Experiment(
        name="dlrm_criteo",
        task=Dlrm(embedding_dimension=64, bottom_mlp=(512, 256, 64), top_mlp=(1024, 1024, 512, 256, 1)),
        policy=sg.FixedBatch(batch_size=32_768),
        epochs=40,
        examples_per_epoch=104_857_600,
        micro_batch_size=4096,
        reference_batch_size=16_384,
        learning_rate=1.25,
        optimizer="sgd",
        vrgd_gamma=0.1,
        schedule="constant",
        warmup_epochs=1,
        validation_batch_size=65_536,
    )
