"""A paragraph, questions about it in the official layout, and a vocabulary of its words, for the tests of SQuAD."""

import gzip
import json

from models import squad

CONTEXT = "Normandy (French: Normandie) is a region of France. The Normans came there in the 10th century, led by Rollo."
MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "##dy", "##die", "##s", "(", ")", ":", ".", ",", "?"]
WORDS = [*MARKS, "norman", "french", "is", "a", "region", "of", "france", "the", "came", "there", "in", "10th", "century",
         "led", "by", "rollo", "who", "them", "what"]  # fmt: skip


def write_vocabulary(folder):
    path = folder / "vocab.txt"
    path.write_text("\n".join(WORDS) + "\n")
    return path


def tokens(window):
    """The words of a window, without the padding."""
    return [WORDS[i] for i in window.word_ids[window.mask == 1]]


def question(text="Rollo", asked="Who led them?"):
    return squad.Question("a", asked, CONTEXT, ((text, CONTEXT.index(text)),))


def record(**changes):
    """What `question` is in a file."""
    start = CONTEXT.index("Rollo")
    return {"id": "a", "question": "Who led them?", "answers": [{"text": "Rollo", "answer_start": start}], **changes}


def file_of(folder, paragraphs, name="squad.json"):
    path = folder / name
    text = json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]})
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


# What is prepared of several questions: some paragraphs are longer than a window.
LENGTH, STRIDE, SHARDS = 96, 8, 3
TWICE = f"{CONTEXT} {CONTEXT}"


def answered(name, text, context, asked="Who led them?"):
    return {"id": name, "question": asked, "answers": [{"text": text, "answer_start": context.rindex(text)}]}


TRAIN = [
    {"context": CONTEXT, "qas": [answered(f"t{i}", text, CONTEXT) for i, text in enumerate(["Rollo", "France", "region"])]},
    {
        "context": TWICE,
        "qas": [
            answered("t3", "Rollo", TWICE, asked="What? " * 40),
            answered("t4", "Normandie", TWICE),
            answered("t5", "France", TWICE, asked="Who? " * 20),
            answered("t6", "century", TWICE),
        ],
    },
]
VALIDATION = [
    {"context": TWICE, "qas": [answered("v0", "Rollo", TWICE, asked="What? " * 40), answered("v1", "France", TWICE)]},
    {"context": CONTEXT, "qas": [answered("v2", "Rollo", CONTEXT), answered("v3", "10th century", CONTEXT)]},
]


def write_sources(folder):
    """train.json, validation.json.gz and vocab.txt."""
    file_of(folder, TRAIN, "train.json")
    file_of(folder, VALIDATION, "validation.json.gz")
    write_vocabulary(folder)
    return folder


def arguments(sources, output, **changes):
    given = {
        "train": sources / "train.json",
        "validation": sources / "validation.json.gz",
        "vocabulary": sources / "vocab.txt",
        "output": output,
        "length": LENGTH,
        "stride": STRIDE,
        "shards": SHARDS,
        **changes,
    }
    return ["squad", *(str(part) for name, value in given.items() for part in (f"--{name}", value))]


def windows_of(sources, name):
    """Per question id its windows, as rows of all that a record holds."""
    cut = squad.Windows(sources / "vocab.txt", LENGTH, STRIDE)
    return {q.id: [(*w.word_ids, *w.mask, *w.type_ids, w.start, w.end) for w in cut.of(q)] for q in squad.read(sources / name)}
