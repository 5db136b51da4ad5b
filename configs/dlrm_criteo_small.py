"""SGD and VR-SGD on a small DLRM with generated clicks, whose best AUC is known.

Paper:    Jiang et al., "Accelerating Large Batch Training via Gradient Signal to Noise Ratio (GSNR)", arXiv 2309.13681. Vectors
          of 16 and narrow layers; 26 tables of 100,000 rows, whose gradients stay rows; two million clicks in Criteo's layout,
          one pass, constant rate, square-root rule from 1,024.
Command:  python -m tools.prepare_data clicks --examples 2000000 --validation-examples 200000 --output TSV
          python -m tools.prepare_data criteo --train TSV/train.tsv --validation TSV/validation.tsv --ceiling TSV/ceiling.json
          --table-sizes 100000 --output CLICKS
          python -m tools.vrgd_table dlrm_criteo_small --optimizers sgd --batch-sizes 1024,4096,16384 --data-dir CLICKS
          (9 trainings; one of them: python -m tools.train dlrm_criteo_small --data-dir CLICKS)
Hardware: two CPU cores.
Measured: 2026-12-01, TensorFlow 2.20.0, tf_keras 2.20.1, one replica, micro-batches of 128 (8, 32 and 128 groups), seed 0 (one
          seed), 1,966,080 examples each, AUC on 200,000. No model's AUC is above 0.7993 on average. The machine did other work
          beside: the seconds are upper bounds, and do not compare the columns. "Shorter" is SGD at the learning rate times
          VRGD's mean multiplier. The rate of 1.0 at 1,024 is one of six tried on half as many other clicks of this kind (0.742;
          1.5 gave 0.747).

          optimizer  batch  updates  plain auc  VRGD auc  shorter auc  ceiling  multiplier  seconds
          sgd        1,024    1,920  0.7567     0.7549    0.7516       0.7993         0.67    108     92     74
          sgd        4,096      480  0.7286     0.7285    0.7279       0.7993         0.72     83     80     60
          sgd       16,384      120  0.6295     0.6289    0.6131       0.7993         0.74     67     76    111

          VR-SGD loses 0.0001 to 0.0018 to SGD at the same rate, and beats the shortened rate by 0.0006 to 0.0158. What is lost
          from batch to batch is the number of updates: one pass is short, and no rate here is too large for SGD, which is where
          the paper's gain is. At a rate of 10 (40 at 16,384) all three diverge: AUC 0.48, 0.50 and 0.50.
"""

import tf_simigrad as sg
from configs.experiment import Experiment
from models.tasks import Dlrm


def get_config() -> Experiment:
    return Experiment(
        name="dlrm_criteo_small",
        task=Dlrm(table_sizes=100_000, embedding_dimension=16, bottom_mlp=(64, 32, 16), top_mlp=(64, 32, 1)),
        policy=sg.FixedBatch(batch_size=1024),
        epochs=10,
        examples_per_epoch=196_608,
        micro_batch_size=128,
        reference_batch_size=1024,
        learning_rate=1.0,
        optimizer="sgd",
        vrgd_gamma=0.1,
        schedule="constant",
        dense_table_elements=1_000_000,
        validation_batch_size=8192,
    )
