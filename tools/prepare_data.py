"""Prepares the data of an experiment once, for all its trainings: python -m tools.prepare_data KIND ...; see --help."""

import importlib

from tools.command_line import Parser

# Each is a module of tools/prepare, with - for _.
KINDS = {
    "bert-pretraining": "text to masked sequences of tokens, in TFRecord files",
    "squad": "SQuAD 1.1 questions to windows of tokens, in a TFRecord file",
    "criteo": "click logs in Criteo's layout to rows of embedding tables, in TFRecord files",
    "clicks": "generated click logs in Criteo's layout, with the best AUC that a model can have",
    "bert-weights": "a published BERT to the encoder of tf-models-official",
    "imagenet": "folders of labelled images, or a data set of TFDS, to JPEG in TFRecord files",
    "cifar10-jpeg": "CIFAR-10 to folders of JPEG files, for imagenet at small size",
}


def main(arguments=None):
    parser = Parser(prog="tools.prepare_data", description=__doc__.splitlines()[0])
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND", parser_class=Parser)
    for kind, what in KINDS.items():
        module = importlib.import_module(f"tools.prepare.{kind.replace('-', '_')}")
        one = kinds.add_parser(kind, help=what, description=module.__doc__.splitlines()[0])
        module.add_arguments(one)
        one.set_defaults(prepare=module.prepare)
    args = parser.parse_args(arguments)
    try:
        args.prepare(args)
    except (ValueError, ImportError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
