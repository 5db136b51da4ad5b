"""SimiGrad on pretraining of a tiny BERT on a hundred books, first phase: the small twin of bert_large_pretrain.

Paper:    Qin et al., "SimiGrad: Fine-Grained Adaptive Batching for Large Scale Training using Gradient Similarity
          Measurement", NeurIPS 2021, pretrains BERT-Large with a target of 0.8 over 400 million sequences
          (bert_large_pretrain). All here is our choice: 2 layers and width 128, a target of 0.1 (at 0.5 the batch grew to 1,000
          before the network had learned more than how frequent words are), 131,072 sequences, LAMB 2e-3 at 64.
Command:  python -m tools.prepare_data bert-pretraining --text books_train.txt.gz --validation-text books_valid.txt.gz
          --vocabulary vocab.txt --length 128 --output DATA128
          python -m tools.train bert_large_pretrain_small --data-dir DATA128
Hardware: two CPU cores, under half an hour.
Measured: 2026-11-30, TensorFlow 2.20.0, tf_keras 2.20.1, one replica, seed 0 (one seed), 1,300 s beside other work:
          masked words of 1,024 sequences from the validation books 6.158 nats, 11.9 % of them right, next sentence 54.4 % (it
          learns nothing of that: the share of its majority). The entropy of the single words of that text is 6.438 nats
          (metadata.json of the data): 0.280 more. 952 updates, mean batch 138, largest 576, 65 % of the updates off the bounds,
          308 changes of size (picture beside).
"""

import tf_simigrad as sg
from configs.experiment import Experiment
from models.tasks import BertPretraining


def get_config() -> Experiment:
    return Experiment(
        name="bert_large_pretrain_small",
        task=BertPretraining(encoder="tiny", length=128, predictions=20),
        policy=sg.SimiGrad(target_similarity=0.1, min_batch_size=64, max_batch_size=1024),
        epochs=16,
        examples_per_epoch=8192,
        micro_batch_size=32,
        reference_batch_size=64,
        learning_rate=2e-3,
        optimizer="lamb",
        weight_decay=0.01,
        global_clipnorm=1.0,
        schedule="linear",
        warmup_epochs=0.5,
        validation_batch_size=128,
        validation_examples=1024,
    )
