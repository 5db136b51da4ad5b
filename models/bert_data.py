"""BERT's pretraining examples from text: sentences, WordPieces, pairs, whole words masked; written to and read from TFRecords.

References:
    Devlin, Chang, Lee, Toutanova, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", 2018.
    Pairs and masks are made by tf-models-official's create_pretraining_data.
"""

import gzip
import itertools
import math
import os
import random
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from models.bad_records import BadRecord

MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MASKED_SHARE = 0.15
# So often the sequences of a document are aimed at a random length.
SHORT_SHARE = 0.1
SHORTEST = 5
# As many as BERT's published data have; other lengths have the share that is masked.
PREDICTIONS = {128: 20, 512: 76}
# Characters; a longer word is unknown. As in BERT's own code.
LONGEST_WORD = 200

# All control characters but the tab.
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
# A closing quote or bracket with which a sentence seems to start.
CLOSING = re.compile(r"""["'”’)\]}]+(?=\s|$)\s*""")
# Ends of what is no sentence.
TITLE = re.compile(r"(?:^|[\s\"'“‘(\[—-])(?:Mr|Mrs|Ms|Messrs|Mme|Mlle|Dr|St|Rev|Hon|Prof|Capt|Col|Gen|Lieut|Sergt)\.$")


class Settings(NamedTuple):
    """What examples are like.

    Attributes:
        length: Tokens of a sequence.
        predictions: The most masked tokens of a sequence.
        copies: How often the text is gone through, with other pairs and masks each time.
        seed: Any integer.
    """

    length: int = 128
    predictions: int = 20
    copies: int = 1
    seed: int = 0


class Shard(NamedTuple):
    """One file of examples that is to be written.

    Attributes:
        split: "train" or "validation".
        index: Of the shard in its split.
        path: Of the file.
        documents: Paragraphs of each document.
        settings: What examples are like.
        vocabulary: File with one WordPiece a line.
    """

    split: str
    index: int
    path: str
    documents: list[list[str]]
    settings: Settings
    vocabulary: str


class Written(NamedTuple):
    """What a shard holds.

    Attributes:
        examples: Sequences.
        masked: Masked tokens of all of them.
        random_next: Sequences whose second part is from elsewhere.
        short_documents: Documents that gave no example, as there is no token in them.
        token_counts: int64 [vocabulary]: how often each token is in the text itself.
    """

    examples: int
    masked: int
    random_next: int
    short_documents: int
    token_counts: np.ndarray


def default_predictions(length: int) -> int:
    """How many tokens of a sequence are masked at most: BERT's 20 of 128 and 76 of 512, else 15 % rounded up."""
    return PREDICTIONS.get(length, math.ceil(MASKED_SHARE * length))


def check(settings: Settings) -> None:
    """Raises a ValueError where there can be no such examples."""
    length, predictions, copies, _ = settings
    if length < SHORTEST:
        raise ValueError(f"length={length}: expected {SHORTEST} or more, for two tokens beside [CLS], [SEP] and [SEP]")
    if not 1 <= predictions <= length - 3:
        raise ValueError(f"predictions={predictions}: expected 1 to {length - 3}, the tokens of a sequence but for its marks")
    if copies < 1:
        raise ValueError(f"copies={copies}: expected 1 or more")


def read_lines(path: str | Path) -> Iterator[str | BadRecord]:
    """Every line of a file, plain or gzipped, without what surrounds it; "" for a blank one.

    Raises:
        ValueError: If the file is no gzip file though its name ends in .gz.
    """
    path = Path(path)
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            for number, line in enumerate(file, 1):
                yield _line(line, f"{path}:{number}")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} is no whole gzip file ({error}): copy it again") from error


def _line(line: bytes, place: str) -> str | BadRecord:
    try:
        text = line.rstrip(b"\r\n").decode("utf-8")
    except UnicodeDecodeError as error:
        return BadRecord(place, f"not UTF-8: byte {line[error.start]:#04x} at byte {error.start + 1} of the line")
    control = CONTROL.search(text)
    if control:
        return BadRecord(place, f"the control character {control.group()!r} at character {control.start() + 1} of the line")
    return text.strip()


def documents(lines: Iterable[str]) -> Iterator[list[str]]:
    """Lists of paragraphs; a blank line ends a document."""
    for has_text, paragraphs in itertools.groupby(lines, bool):
        if has_text:
            yield list(paragraphs)


def read_vocabulary(path: str | Path) -> dict[str, int]:
    """The ids of WordPieces, one a line.

    Raises:
        ValueError: If one is there twice, or a mark of BERT is missing.
    """
    words = Path(path).read_text(encoding="utf-8").rstrip("\n").split("\n")
    ids = {word: i for i, word in enumerate(words)}
    missing = [mark for mark in MARKS if mark not in ids]
    if missing or len(ids) < len(words):
        what = f"lacks {', '.join(missing)}" if missing else f"holds {len(words) - len(ids)} tokens more than once"
        raise ValueError(f"{path} {what}: expected a vocabulary of BERT, one token a line")
    return ids


def sentences(paragraphs: Sequence[str]) -> list[str]:
    """The sentences of some paragraphs, in order; together they are the text of the paragraphs but for spaces.

    The rules are those of TensorFlow Text, with two repairs: closing quotes stay with the sentence that they end, and what goes
    on in lower case ('"Who?" he said.') or after a title ("Mr. Bushby") is no new sentence.
    """
    import tensorflow_text

    found = []
    for broken in tensorflow_text.StateBasedSentenceBreaker().break_sentences(list(paragraphs)).to_list():
        of_paragraph: list[str] = []
        for sentence in broken:
            _append(of_paragraph, sentence.decode().strip())
        found.extend(of_paragraph)
    return found


def _append(before: list[str], sentence: str) -> None:
    closing = CLOSING.match(sentence) if before else None
    if closing:
        before[-1] += closing.group().rstrip()
        sentence = sentence[closing.end() :]
    if before and (sentence[:1].islower() or TITLE.search(before[-1])):
        before[-1] += " " + sentence
    elif sentence:
        before.append(sentence)


def tokenizer(vocabulary: dict[str, int]):
    """BERT's tokenizer of lower case. Marks such as [SEP] in a text are brackets and a word."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    # Not BertWordPieceTokenizer: it takes [SEP] in a text for the mark, as BERT's own does not.
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=LONGEST_WORD))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return made


def write(shard: Shard) -> Written:
    """Makes the examples of a shard and writes them, in an order of their own; the file is there when it is whole.

    All that is random depends on the seed, the split, the shard and the copy.

    Raises:
        ValueError: If fewer than two documents of the shard hold text.
    """
    import tensorflow as tf

    ids = read_vocabulary(shard.vocabulary)
    used = list(filter(None, map(_tokenize(ids), shard.documents)))
    if len(used) < 2:
        raise ValueError(
            f"shard {shard.index} of the {shard.split} text has {len(used)} documents that hold a token: a random next "
            f"sentence needs at least 2; use fewer shards, or text with more documents (a blank line ends one)"
        )
    records, masked, random_next = [], 0, 0
    for instance in _instances(shard, used, list(ids)):
        records.append(_serialized(instance, shard.settings, ids))
        masked += len(instance.masked_lm_positions)
        random_next += instance.is_random_next
    random.Random(f"{shard.settings.seed}/{shard.split}/{shard.index}").shuffle(records)
    with tf.io.TFRecordWriter(f"{shard.path}.partial") as file:
        for record in records:
            file.write(record)
    os.replace(f"{shard.path}.partial", shard.path)
    tokens = [ids[token] for document in used for sentence in document for token in sentence]
    counts = np.bincount(tokens, minlength=len(ids)).astype(np.int64)
    return Written(len(records), masked, random_next, len(shard.documents) - len(used), counts)


def _tokenize(ids: dict[str, int]) -> Callable[[list[str]], list[list[str]]]:
    """From the paragraphs of a document to the tokens of its sentences, without those that have none."""
    words = tokenizer(ids)
    return lambda paragraphs: [found.tokens for found in words.encode_batch(sentences(paragraphs)) if found.tokens]


def _instances(shard: Shard, used: list[list[list[str]]], words: list[str]) -> Iterator:
    """tf-models-official's instances of all documents, in all copies."""
    # Imported here: it defines command-line flags and takes seconds.
    from official.nlp.data import create_pretraining_data

    settings = shard.settings
    for copy in range(settings.copies):
        rng = random.Random(f"{settings.seed}/{shard.split}/{shard.index}/{copy}")
        for index in range(len(used)):
            yield from create_pretraining_data.create_instances_from_document(
                used,
                index,
                max_seq_length=settings.length,
                short_seq_prob=SHORT_SHARE,
                masked_lm_prob=MASKED_SHARE,
                max_predictions_per_seq=settings.predictions,
                vocab_words=words,
                rng=rng,
                do_whole_word_mask=True,
            )


def _serialized(instance, settings: Settings, ids: dict[str, int]) -> bytes:
    import tensorflow as tf

    def padded(values, size, pad=0):
        return [*values, *[pad] * (size - len(values))]

    length, predictions = settings.length, settings.predictions
    masked = [ids[token] for token in instance.masked_lm_labels]
    integers = {
        "input_word_ids": padded([ids[token] for token in instance.tokens], length, ids["[PAD]"]),
        "input_mask": padded([1] * len(instance.tokens), length),
        "input_type_ids": padded(instance.segment_ids, length),
        "masked_lm_positions": padded(instance.masked_lm_positions, predictions),
        "masked_lm_ids": padded(masked, predictions),
        "next_sentence_labels": [int(instance.is_random_next)],
    }
    example = tf.train.Example()
    for name, values in integers.items():
        example.features.feature[name].int64_list.value.extend(values)
    example.features.feature["masked_lm_weights"].float_list.value.extend(padded([1.0] * len(masked), predictions))
    return example.SerializeToString(deterministic=True)


def features(length: int, predictions: int) -> dict:
    """What an example of a file holds, for `tf.io.parse_example`.

    Args:
        length: Tokens of a sequence.
        predictions: The most masked tokens of a sequence.
    """
    import tensorflow as tf

    return {
        "input_word_ids": tf.io.FixedLenFeature([length], tf.int64),
        "input_mask": tf.io.FixedLenFeature([length], tf.int64),
        "input_type_ids": tf.io.FixedLenFeature([length], tf.int64),
        "masked_lm_positions": tf.io.FixedLenFeature([predictions], tf.int64),
        "masked_lm_ids": tf.io.FixedLenFeature([predictions], tf.int64),
        "masked_lm_weights": tf.io.FixedLenFeature([predictions], tf.float32),
        "next_sentence_labels": tf.io.FixedLenFeature([], tf.int64),
    }


def parse(length: int, predictions: int):
    """A function that reads examples: string [batch], serialized, to the dictionary of `models.bert.element_spec`."""
    import tensorflow as tf

    expected = features(length, predictions)

    def parsed(serialized):
        found = tf.io.parse_example(serialized, expected)
        return {name: tf.cast(value, tf.int32) if value.dtype == tf.int64 else value for name, value in found.items()}

    return parsed


def cross_entropy(counts: np.ndarray, others: np.ndarray) -> float:
    """Nats per counted token, under the shares of some other counts; under those of its own it is the entropy.

    Args:
        counts: How often each token is there [vocabulary].
        others: Those that give the shares [vocabulary], above 0 where ``counts`` are.
    """
    seen = counts > 0
    return float(-(counts[seen] * np.log(others[seen] / others.sum())).sum() / counts.sum())
