"""A paragraph, its questions in the official layout, and a vocabulary that holds its words, for the tests of SQuAD."""

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


def question(text="Rollo", asked="Who led them?", name="a"):
    return squad.Question(name, asked, CONTEXT, ((text, CONTEXT.index(text)),))


def record(**changes):
    """What `question` is in a file."""
    start = CONTEXT.index("Rollo")
    return {"id": "a", "question": "Who led them?", "answers": [{"text": "Rollo", "answer_start": start}], **changes}


def file_of(folder, paragraphs, name="squad.json"):
    path = folder / name
    text = json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]})
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path
