"""A published BERT to the encoder of tf-models-official: bert_config.json and encoder.ckpt, for models.bert_weights.load."""

from pathlib import Path

from models import bert_sources, bert_weights


def add_arguments(parser):
    parser.add_argument("source", metavar="SOURCE", type=Path, help=bert_sources.EXPECTED)
    parser.add_argument("--output", metavar="DIR", type=Path, required=True, help="folder for the encoder")
    parser.add_argument("--config", metavar="FILE", type=Path, help="the source's configuration, if not beside its weights")


def prepare(args):
    done = bert_weights.convert(args.source, args.output, args.config)
    pooler = "" if done.has_pooler else "; no pooler in the source: the encoder's is as it was initialised, at random"
    unused = f"; not used of the source: {', '.join(done.unused)}" if done.unused else ""
    print(
        f"{args.output}: {done.size.layers} layers, width {done.size.hidden}, {done.size.heads} heads, "
        f"{done.parameters:,} parameters{pooler}{unused}"
    )
