"""SQuAD 1.1: questions from JSON, windows of tokens for a network that labels spans, and answers from its logits.

References:
    Rajpurkar, Zhang, Lopyrev, Liang, "SQuAD: 100,000+ Questions for Machine Comprehension of Text", 2016. Windows and the
    choice of spans are those of Devlin et al., "BERT", 2018.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from models.bad_records import BadRecord

# Inputs of a network: attribute of a window.
TOKENS = {"input_word_ids": "word_ids", "input_mask": "mask", "input_type_ids": "type_ids"}
LONGEST_QUESTION = 64
LONGEST_ANSWER = 30
BEST_LOGITS = 20


class Question(NamedTuple):
    """A question about a paragraph; each answer is its text and where it starts in the paragraph, in characters."""

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...]


class Window(NamedTuple):
    """A part of a paragraph beside the question, in tokens.

    Attributes:
        question_id: Of the question.
        word_ids: Tokens [length]: [CLS] question [SEP] paragraph [SEP], then padding.
        type_ids: 1 for the paragraph and its [SEP].
        mask: 1 where there is a token.
        start: Token with which the answer starts; 0, the [CLS], where the window does not hold it.
        end: Token with which it ends, inclusive.
        offsets: [length, 2]: characters of the paragraph that a token stands for; (-1, -1) outside of the paragraph.
        has_most_context: For each token, whether no other window of the question has more around it.
    """

    question_id: str
    word_ids: np.ndarray
    type_ids: np.ndarray
    mask: np.ndarray
    start: int
    end: int
    offsets: np.ndarray
    has_most_context: np.ndarray


def read(path: str | Path) -> Iterator[Question | BadRecord]:
    """Every question of a file in the official layout, plain or gzipped, and every record that is none.

    Raises:
        ValueError: If the file is no JSON of that layout at all.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
        articles = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)["data"]
        if not isinstance(articles, list):
            raise TypeError("data is no list")
    except (json.JSONDecodeError, UnicodeDecodeError, EOFError, gzip.BadGzipFile, KeyError, TypeError) as error:
        expected = '{"data": [{"paragraphs": [...]}]}'
        raise ValueError(f"{path} is no SQuAD file: expected {expected} as JSON ({error!r})") from error
    yield from _distinct(_questions(articles, str(path)))


def _questions(articles: list, path: str) -> Iterator[tuple[str, Question | BadRecord]]:
    """Every record with its place; what should hold some and does not is a bad one itself."""
    for a, article in enumerate(articles):
        of_article = f"{path}: data[{a}]"
        if not _has_list(article, "paragraphs"):
            yield of_article, BadRecord(of_article, "an article without a list of paragraphs")
            continue
        for p, paragraph in enumerate(article["paragraphs"]):
            of_paragraph = f"{of_article}.paragraphs[{p}]"
            if not _has_list(paragraph, "qas"):
                yield of_paragraph, BadRecord(of_paragraph, "a paragraph without a list of questions, qas")
                continue
            for q, record in enumerate(paragraph["qas"]):
                place = f"{of_paragraph}.qas[{q}]"
                yield place, _question(record, paragraph.get("context"), place)


def _distinct(questions: Iterable[tuple[str, Question | BadRecord]]) -> Iterator[Question | BadRecord]:
    """A question whose id another one has is a bad record: answers go by ids."""
    places: dict[str, str] = {}
    for place, question in questions:
        if isinstance(question, Question) and places.setdefault(question.id, place) != place:
            yield BadRecord(place, f"the id {question.id} is that of {places[question.id]}")
        else:
            yield question


def _has_list(holder: object, name: str) -> bool:
    return isinstance(holder, dict) and isinstance(holder.get(name), list)


def _question(record: object, context: object, place: str) -> Question | BadRecord:
    if not isinstance(record, dict) or not isinstance(context, str) or not context.strip():
        return BadRecord(place, "no question, or a paragraph without text")
    if not isinstance(record.get("id"), str) or not str(record.get("question") or "").strip():
        return BadRecord(place, "no id, or a question without text")
    answers = []
    for answer in record["answers"] if _has_list(record, "answers") else []:
        text, start = (answer.get("text"), answer.get("answer_start")) if isinstance(answer, dict) else (None, None)
        if not isinstance(text, str) or not text or not isinstance(start, int):
            return BadRecord(place, f"an answer without text or answer_start: {answer!r}")
        if context[start : start + len(text)] != text or start < 0:
            return BadRecord(place, f"the answer {text!r} does not stand at character {start} of its paragraph")
        answers.append((text, start))
    if not answers:
        return BadRecord(place, "no answers")
    return Question(record["id"], record["question"], context, tuple(answers))


class Windows:
    """Cuts questions and paragraphs into windows.

    Args:
        vocabulary: File with one WordPiece a line, of an uncased BERT.
        length: Tokens of a window.
        stride: Tokens of the paragraph from the start of one window to that of the next.

    Raises:
        ValueError: If a window would not hold ``stride`` tokens of a paragraph beside the longest question.
    """

    def __init__(self, vocabulary: str | Path, length: int = 384, stride: int = 128) -> None:
        # Imported here: what only reads and scores needs no tokenizer.
        from tokenizers import BertWordPieceTokenizer

        if not 1 <= stride <= length - LONGEST_QUESTION - 3:
            raise ValueError(
                f"length={length}, stride={stride}: beside a question of {LONGEST_QUESTION} tokens and 3 marks a window has "
                f"room for {length - LONGEST_QUESTION - 3} tokens of the paragraph; the stride must be 1 to that"
            )
        self._length, self._stride = length, stride
        self._questions = BertWordPieceTokenizer(str(vocabulary), lowercase=True)
        self._questions.enable_truncation(LONGEST_QUESTION)
        self._pairs = BertWordPieceTokenizer(str(vocabulary), lowercase=True)
        self._pairs.enable_padding(length=length)

    def of(self, question: Question) -> list[Window]:
        """The windows of one question, labelled with its first answer."""
        asked = self._questions.encode(question.question, add_special_tokens=False)
        text = question.question[: asked.offsets[-1][1]] if asked.offsets else ""
        room = self._length - len(asked.ids) - 3
        self._pairs.enable_truncation(self._length, stride=room - self._stride, strategy="only_second")
        first = self._pairs.encode(text, question.context)
        encodings = [first, *first.overflowing]
        offsets = [_offsets(encoding) for encoding in encodings]
        most = _most_context(offsets)
        return [
            Window(
                question.id,
                np.array(encoding.ids, np.int32),
                np.array(encoding.type_ids, np.int32),
                np.array(encoding.attention_mask, np.int32),
                *_labels(of_window, *question.answers[0]),
                of_window,
                has_most,
            )
            for encoding, of_window, has_most in zip(encodings, offsets, most, strict=True)
        ]


def _offsets(encoding: object) -> np.ndarray:
    in_paragraph = np.array([sequence == 1 for sequence in encoding.sequence_ids])
    return np.where(in_paragraph[:, None], np.array(encoding.offsets, np.int32), -1)


def _labels(offsets: np.ndarray, text: str, start: int) -> tuple[int, int]:
    """First and last token of an answer; (0, 0) where the window does not hold it whole."""
    first, last = start + len(text) - len(text.lstrip()), start + len(text.rstrip()) - 1
    # A token that holds a character of the answer: "1961" is within "(1961)", but may be within "1961-1963" too.
    of_first = np.flatnonzero((offsets[:, 0] <= first) & (offsets[:, 1] > first))
    of_last = np.flatnonzero((offsets[:, 0] <= last) & (offsets[:, 1] > last))
    return (int(of_first[0]), int(of_last[-1])) if len(of_first) and len(of_last) else (0, 0)


def _most_context(offsets: Sequence[np.ndarray]) -> list[np.ndarray]:
    """For every token of every window, whether that window has the most tokens on the poorer side of it."""
    best: dict[int, tuple[float, int]] = {}
    for index, of_window in enumerate(offsets):
        held = np.flatnonzero(of_window[:, 0] >= 0)
        scores = {int(of_window[token, 0]): min(token - held[0], held[-1] - token) + 0.01 * len(held) for token in held}
        for character, score_here in scores.items():
            # The first of several windows that are equally good.
            if character not in best or score_here > best[character][0]:
                best[character] = (score_here, index)
    return [
        np.array([character >= 0 and best[character][1] == index for character in of_window[:, 0].tolist()])
        for index, of_window in enumerate(offsets)
    ]


def answer(windows: Sequence[Window], starts: np.ndarray, ends: np.ndarray, context: str) -> str:
    """The span with the highest sum of logits over all windows of one question.

    Args:
        windows: Of the question.
        starts: Logits of the first token [windows, length].
        ends: Logits of the last token, same shape.
        context: The paragraph.

    Returns:
        Text of the paragraph as it stands there; "" if no span is possible.
    """
    best, text = -np.inf, ""
    for window, start, end in zip(windows, starts, ends, strict=True):
        possible = window.offsets[:, 0] >= 0
        firsts = _largest(start, possible & window.has_most_context)
        lasts = _largest(end, possible)
        for first in firsts:
            for last in lasts:
                score = start[first] + end[last]
                if first <= last < first + LONGEST_ANSWER and score > best:
                    best, text = score, context[window.offsets[first, 0] : window.offsets[last, 1]]
    return text


def _largest(logits: np.ndarray, possible: np.ndarray) -> np.ndarray:
    places = np.flatnonzero(possible)
    return places[np.argsort(-np.asarray(logits)[places], kind="stable")[:BEST_LOGITS]]


def score(questions: Iterable[Question], answers: dict[str, str]) -> dict[str, float]:
    """Exact match and F1 as the official evaluation of SQuAD 1.1 has them, in percent; a question without an answer scores 0.

    Args:
        questions: With their gold answers.
        answers: By question id.

    Returns:
        "exact_match" and "f1".
    """
    from official.nlp.tools import squad_evaluate_v1_1

    paragraphs = [
        {"qas": [{"id": q.id, "question": q.question, "answers": [{"text": text} for text, _ in q.answers]}]} for q in questions
    ]
    found = squad_evaluate_v1_1.evaluate([{"paragraphs": paragraphs}], answers)
    return {"exact_match": 100 * found["exact_match"], "f1": 100 * found["final_f1"]}
