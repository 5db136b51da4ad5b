"""Pretraining examples of BERT: runs of the text, whole words masked, pairs labelled as they are; bad lines are named."""

import gzip
import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest

from models import bert_data
from models.bad_records import BadRecord

pytestmark = pytest.mark.one_keras

SUFFIXES = ["##x", "##y", "##z"]
FIRST = [*bert_data.MARKS, ".", *SUFFIXES]


class Text:
    """Documents in which the first piece of every word is found once only, so that each token says where it stands."""

    def __init__(self, documents, words, seed=0):
        rng = random.Random(seed)
        stems = ("".join(letters) for letters in itertools.product("abcdefghijklm", repeat=4))
        self.documents, self.tokens = [], []
        for _ in range(documents):
            paragraphs, tokens = [], []
            remaining = rng.randint(words // 4, words)
            while remaining > 0:
                sentences = []
                for _ in range(rng.randint(1, 4)):
                    length = rng.randint(2, 12)
                    remaining -= length
                    pieces = [[next(stems), *rng.choices(SUFFIXES, k=rng.choice([0, 0, 0, 1, 2]))] for _ in range(length)]
                    sentences.append(" ".join("".join(word).replace("##", "") for word in pieces).capitalize() + ".")
                    tokens += [piece for word in pieces for piece in word] + ["."]
                paragraphs.append(" ".join(sentences))
            self.documents.append(paragraphs)
            self.tokens.append(tokens)
        self.vocabulary = [*FIRST, *sorted({token for tokens in self.tokens for token in tokens} - set(FIRST))]
        self.places = {token: (d, t) for d, of_document in enumerate(self.tokens) for t, token in enumerate(of_document)}
        stops = [[t for t, token in enumerate(tokens) if token == "."] for tokens in self.tokens]
        self.longest_sentence = max(b - a for of_document in stops for a, b in itertools.pairwise([-1, *of_document]))

    def files(self, folder, name="text.txt"):
        (folder / "vocab.txt").write_text("\n".join(self.vocabulary) + "\n")
        (folder / name).write_text("\n\n".join("\n".join(paragraphs) for paragraphs in self.documents) + "\n")
        return folder / name

    def place(self, tokens):
        """(document, first token, last token) of a run; fails where it is none."""
        anchor = next(i for i, token in enumerate(tokens) if token not in FIRST)
        document, at = self.places[tokens[anchor]]
        start = at - anchor
        assert self.tokens[document][start : start + len(tokens)] == tokens
        return document, start, start + len(tokens) - 1


def examples_of(path):
    """Every example of a file as a dictionary of lists, read without what is tested."""
    import tensorflow as tf

    found = []
    for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        features = tf.train.Example.FromString(record).features.feature
        found.append({name: list(getattr(f, f.WhichOneof("kind")).value) for name, f in features.items()})
    return found


def unmasked(example, vocabulary):
    """The tokens of an example as they were, without the padding."""
    ids = list(example["input_word_ids"])
    for position, word, weight in zip(
        example["masked_lm_positions"], example["masked_lm_ids"], example["masked_lm_weights"], strict=True
    ):
        if weight:
            ids[position] = word
    return [vocabulary[i] for i in ids[: sum(example["input_mask"])]]


def masked(example):
    return [p for p, weight in zip(example["masked_lm_positions"], example["masked_lm_weights"], strict=True) if weight]


def words_of(tokens):
    """Lists of the positions of the pieces of each word; a piece at the start of a part that was cut off is a word."""
    words = []
    for position, token in enumerate(tokens):
        if token in ("[CLS]", "[SEP]"):
            continue
        if token.startswith("##") and tokens[position - 1] not in ("[CLS]", "[SEP]"):
            words[-1].append(position)
        else:
            words.append([position])
    return words


def write(folder, text, length=128, predictions=20, copies=1, seed=0, split="train", index=0):
    text.files(folder)
    path = folder / f"{split}-{index}-{seed}.tfrecord"
    settings = bert_data.Settings(length, predictions, copies, seed)
    shard = bert_data.Shard(split, index, str(path), text.documents, settings, str(folder / "vocab.txt"))
    return path, bert_data.write(shard)


@pytest.fixture(scope="module", params=[(128, 20, 12), (512, 76, 24)], ids=["128", "512"])
def made(request, tmp_path_factory):
    length, predictions, copies = request.param
    text = Text(documents=16, words=600)
    path, written = write(tmp_path_factory.mktemp("examples"), text, length, predictions, copies)
    examples = examples_of(path)
    tokens = [unmasked(example, text.vocabulary) for example in examples]
    return SimpleNamespace(
        path=path, written=written, text=text, length=length, predictions=predictions, examples=examples, tokens=tokens
    )


def test_there_are_two_parts_between_marks_and_padding(made):
    full = 0
    for example, tokens in zip(made.examples, made.tokens, strict=True):
        n, end_of_a = len(tokens), tokens.index("[SEP]")
        assert tokens[0] == "[CLS]" and tokens[-1] == "[SEP]" and tokens.count("[SEP]") == 2 and tokens.count("[CLS]") == 1
        assert 1 < end_of_a < n - 2
        assert example["input_mask"] == [1] * n + [0] * (made.length - n)
        assert example["input_type_ids"] == [0] * (end_of_a + 1) + [1] * (n - end_of_a - 1) + [0] * (made.length - n)
        assert example["input_word_ids"][n:] == [0] * (made.length - n)
        full += n == made.length
    assert full > len(made.examples) / 3


def test_what_is_masked_is_listed_once_and_padded(made):
    for example, tokens in zip(made.examples, made.tokens, strict=True):
        count = int(sum(example["masked_lm_weights"]))
        rest = [0] * (made.predictions - count)
        assert example["masked_lm_weights"] == [1.0] * count + rest
        assert example["masked_lm_positions"][count:] == example["masked_lm_ids"][count:] == rest
        positions = example["masked_lm_positions"][:count]
        assert positions == sorted(set(positions))
        assert not {tokens[position] for position in positions} & {"[CLS]", "[SEP]"}
        assert 1 <= count <= max(1, round(0.15 * len(tokens)))


def test_the_parts_are_runs_of_the_text_and_labelled_as_they_are(made):
    labels = []
    for example, tokens in zip(made.examples, made.tokens, strict=True):
        end_of_a = tokens.index("[SEP]")
        parts = tokens[1:end_of_a], tokens[end_of_a + 1 : -1]
        (label,) = example["next_sentence_labels"]
        labels.append(label)
        # A part of one full stop could stand anywhere.
        if all(any(token not in FIRST for token in part) for part in parts):
            (document_a, _, last), (document_b, first, _) = map(made.text.place, parts)
            assert (document_a != document_b) == label
            # Between them is only what was cut off as there was no room for it.
            if not label:
                assert last < first <= last + 2 * made.text.longest_sentence
    assert 0.4 < np.mean(labels) < 0.7


def test_whole_words_are_masked_and_fifteen_in_a_hundred(made):
    kinds, masked_tokens, tokens_in_all = {"mask": 0, "same": 0, "other": 0}, 0, 0
    ids = {token: i for i, token in enumerate(made.text.vocabulary)}
    for example, tokens in zip(made.examples, made.tokens, strict=True):
        positions = set(masked(example))
        masked_tokens += len(positions)
        tokens_in_all += len(tokens)
        for word in words_of(tokens):
            assert positions.issuperset(word) or positions.isdisjoint(word)
            given = [example["input_word_ids"][position] for position in word]
            was = [ids[tokens[position]] for position in word]
            if positions.isdisjoint(word):
                assert given == was
            else:
                kinds["mask" if set(given) == {ids["[MASK]"]} else "same" if given == was else "other"] += 1
    assert masked_tokens / tokens_in_all == pytest.approx(0.15, abs=0.01)
    words = sum(kinds.values())
    assert words > 5000
    shares = {kind: count / words for kind, count in kinds.items()}
    assert shares == pytest.approx({"mask": 0.8, "same": 0.1, "other": 0.1}, abs=0.01)


def test_other_words_come_from_the_whole_vocabulary(made):
    others = set()
    for example, tokens in zip(made.examples, made.tokens, strict=True):
        for position in masked(example):
            given = made.text.vocabulary[example["input_word_ids"][position]]
            if given not in ("[MASK]", tokens[position]):
                others.add(given)
    assert len(others) > 0.1 * len(made.text.vocabulary)


def test_what_was_written_is_counted(made):
    written = made.written
    assert written.examples == len(made.examples)
    assert written.masked == sum(len(masked(example)) for example in made.examples)
    assert written.random_next == sum(example["next_sentence_labels"][0] for example in made.examples)
    assert written.short_documents == 0
    tokens = np.concatenate(made.text.tokens)
    vocabulary, counts = np.unique(tokens, return_counts=True)
    found = dict(zip(made.text.vocabulary, written.token_counts, strict=True))
    assert {token: count for token, count in found.items() if count} == dict(zip(vocabulary, counts, strict=True))


def test_every_copy_goes_through_the_text_in_another_way(tmp_path):
    text = Text(documents=8, words=400)
    first = {str(example) for example in examples_of(write(tmp_path, text)[0])}
    both = [str(example) for example in examples_of(write(tmp_path, text, copies=2)[0])]
    second = set(both) - first
    assert len(second) + len(first) == len(both) and first < set(both)
    assert 0.6 * len(first) < len(second) < 1.5 * len(first)


def test_the_order_is_not_that_of_the_text(made):
    documents = [made.text.place(tokens[1 : tokens.index("[SEP]")])[0] for tokens in made.tokens if len(tokens) > 20]
    assert sum(a == b for a, b in itertools.pairwise(documents)) < 0.3 * len(documents)


def test_parse_gives_what_the_model_is_given(made):
    import tensorflow as tf

    from models import bert

    records = tf.stack(list(tf.data.TFRecordDataset(str(made.path)).take(5)))
    parsed = bert_data.parse(made.length, made.predictions)(records)
    spec = bert.element_spec(5, made.length, made.predictions)
    assert {name: tf.TensorSpec.from_tensor(value) for name, value in parsed.items()} == spec
    for name, value in parsed.items():
        expected = np.array([example[name] for example in made.examples[:5]]).reshape(value.shape)
        np.testing.assert_array_equal(value, expected, err_msg=name)


def test_parse_refuses_other_lengths(made):
    import tensorflow as tf

    record = next(iter(tf.data.TFRecordDataset(str(made.path)).batch(1)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="Number of int64 values != expected"):
        bert_data.parse(made.length - 1, made.predictions)(record)


@pytest.mark.parametrize("change", [{"seed": 1}, {"split": "validation"}, {"index": 1}])
def test_bytes_depend_on_seed_split_and_shard_only(tmp_path, change):
    text = Text(documents=3, words=100)
    path, _ = write(tmp_path, text)
    first, examples = path.read_bytes(), examples_of(path)
    path.unlink()
    write(tmp_path, text)
    assert path.read_bytes() == first
    other, _ = write(tmp_path, text, **change)
    # Not only their order.
    assert not [example for example in examples_of(other) if example in examples]
    assert not list(tmp_path.glob("*.partial"))


def test_documents_without_a_token_are_counted_and_one_other_is_too_few(tmp_path):
    text = Text(documents=2, words=50)
    # A zero-width space is text to Python, and nothing to BERT.
    text.documents.append(["\u200b"])
    path, written = write(tmp_path, text)
    assert written.short_documents == 1 and len(examples_of(path)) == written.examples > 0
    del text.documents[0]
    with pytest.raises(ValueError, match="shard 0 of the train text has 1 documents.*at least 2; use fewer shards"):
        write(tmp_path, text)


@pytest.mark.parametrize(
    ("paragraph", "expected"),
    [
        ("It rained. We went home.", ["It rained.", "We went home."]),
        ("'Can I speak to you?' he said. 'May I?' He did.", ["'Can I speak to you?' he said.", "'May I?'", "He did."]),
        ('"Have you seen it?" said Mr. Bushby. "No."', ['"Have you seen it?" said Mr. Bushby.', '"No."']),
        ("(She had gone.) Nobody saw.", ["(She had gone.)", "Nobody saw."]),
        ('He stood. "Do you know why?"', ["He stood.", '"Do you know why?"']),
        ("no end", ["no end"]),
    ],
)
def test_sentences(paragraph, expected):
    assert bert_data.sentences([paragraph, "One more."]) == [*expected, "One more."]


def test_sentences_of_books_lose_nothing(data_dir):
    path = data_dir / "text" / "books_valid.txt.gz"
    if not path.exists():
        pytest.skip("needs text/books_valid.txt.gz")
    paragraphs = [line for line in gzip.decompress(path.read_bytes()).decode().split("\n") if line.strip()]
    found = bert_data.sentences(paragraphs)
    assert "".join("".join(found).split()) == "".join("".join(paragraphs).split())
    # English prose has about twenty words a sentence.
    assert 15 < sum(len(p.split()) for p in paragraphs) / len(found) < 30


def test_tokens_are_those_of_the_official_tokenizer(tmp_path):
    from official.nlp.tools import tokenization

    pieces = [*bert_data.MARKS, *"abcdefghijklmnopqrstuvwxyz[]().,!?-'中", *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz")]
    (tmp_path / "vocab.txt").write_text("\n".join([*pieces, "the", "##ing", "sep"]) + "\n", encoding="utf-8")
    official = tokenization.FullTokenizer(str(tmp_path / "vocab.txt"), do_lower_case=True)
    ours = bert_data.tokenizer(bert_data.read_vocabulary(tmp_path / "vocab.txt"))
    for text in [
        "The thing—Ça, naïve!",
        "中文 a\u00a0b\tc",
        "[SEP] and [MASK].",
        "can't (do) well-known",
        "x" * 150,
        "ß 12",
        "\u200b",
    ]:
        assert ours.encode(text).tokens == official.tokenize(text), text


@pytest.mark.parametrize("name", ["text.txt", "text.txt.gz"])
def test_lines_that_cannot_be_used_are_named(tmp_path, name):
    path = tmp_path / name
    content = "Größe\tzehn \r\n\r\n  \n".encode() + b"a\xff\n" + b"ab\x00\n" + "a\x85b\n".encode() + b"c\rd\nlast"
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert list(bert_data.read_lines(path)) == [
        "Größe\tzehn",
        "",
        "",
        BadRecord(f"{path}:4", "not UTF-8: byte 0xff at byte 2 of the line"),
        BadRecord(f"{path}:5", "the control character '\\x00' at character 3 of the line"),
        BadRecord(f"{path}:6", "the control character '\\x85' at character 2 of the line"),
        BadRecord(f"{path}:7", "the control character '\\r' at character 2 of the line"),
        "last",
    ]


@pytest.mark.parametrize("content", [gzip.compress(b"text\n" * 1000)[:-12], b"text\n"])
def test_a_file_that_is_not_whole_is_refused(tmp_path, content):
    path = tmp_path / "text.txt.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"text\.txt\.gz is no whole gzip file"):
        list(bert_data.read_lines(path))


def test_a_blank_line_ends_a_document():
    assert list(bert_data.documents(["", "a", "b", "", "", "c"])) == [["a", "b"], ["c"]]
    assert list(bert_data.documents([])) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [([*bert_data.MARKS[:-1], "a"], r"lacks \[MASK\]"), ([*bert_data.MARKS, "a", "b", "a"], "1 tokens more than once")],
)
def test_a_vocabulary_that_is_none_is_refused(tmp_path, words, message):
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    with pytest.raises(ValueError, match=message):
        bert_data.read_vocabulary(tmp_path / "vocab.txt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 4}, "length=4: expected 5 or more"),
        ({"predictions": 0}, "predictions=0: expected 1 to 125"),
        ({"predictions": 126}, "predictions=126: expected 1 to 125"),
        ({"copies": 0}, "copies=0: expected 1 or more"),
    ],
)
def test_settings_that_give_no_examples_are_refused(change, message):
    bert_data.check(bert_data.Settings())
    with pytest.raises(ValueError, match=message):
        bert_data.check(bert_data.Settings()._replace(**change))


def test_the_smallest_settings_work(tmp_path):
    path, written = write(tmp_path, Text(documents=3, words=60), length=bert_data.SHORTEST, predictions=1)
    assert written.examples == len(examples_of(path)) > 10


def test_predictions_are_those_of_bert():
    assert [bert_data.default_predictions(length) for length in (128, 512, 64, 100)] == [20, 76, 10, 15]


def test_cross_entropy():
    counts, others = np.array([2, 0, 1, 1]), np.array([1, 5, 1, 1])
    assert bert_data.cross_entropy(counts, counts) == pytest.approx(1.5 * np.log(2))
    assert bert_data.cross_entropy(counts, others) == pytest.approx(np.log(8))
