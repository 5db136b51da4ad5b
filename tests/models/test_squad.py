"""SQuAD: records that cannot be used are named, windows hold what they say, answers and scores are the official ones."""

import json

import numpy as np
import pytest

from models import squad
from tests.models.squad_examples import CONTEXT, file_of, question, record, tokens, write_vocabulary

pytestmark = pytest.mark.one_keras


@pytest.fixture
def vocabulary(tmp_path):
    return write_vocabulary(tmp_path)


@pytest.mark.parametrize("name", ["squad.json", "squad.json.gz"])
def test_a_question_is_read(tmp_path, name):
    (found,) = squad.read(file_of(tmp_path, [{"context": CONTEXT, "qas": [record()]}], name))
    assert found == question()


def test_what_should_hold_records_and_does_not_is_a_bad_record(tmp_path):
    path = tmp_path / "squad.json"
    paragraph = {"context": CONTEXT, "qas": [record()]}
    path.write_text(json.dumps({"data": [{"title": "t"}, {"paragraphs": [paragraph, {"context": CONTEXT}, 3]}, 7]}))
    found = list(squad.read(path))
    assert [f for f in found if isinstance(f, squad.Question)] == [question()]
    assert [str(f).removeprefix(f"{path}: ") for f in found if not isinstance(f, squad.Question)] == [
        "data[0]: an article without a list of paragraphs",
        "data[1].paragraphs[1]: a paragraph without a list of questions, qas",
        "data[1].paragraphs[2]: a paragraph without a list of questions, qas",
        "data[2]: an article without a list of paragraphs",
    ]


def test_an_id_that_another_question_has_is_a_bad_record(tmp_path):
    path = file_of(tmp_path, [{"context": CONTEXT, "qas": [record(), record(question="What is it?"), record(id="b")]}])
    first, second, third = squad.read(path)
    assert (first.id, third.id) == ("a", "b")
    assert second.reason == f"the id a is that of {path}: data[0].paragraphs[0].qas[0]"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"id": None}, "no id"),
        ({"question": "  "}, "question without text"),
        ({"answers": []}, "no answers"),
        ({"answers": [{"text": "Rollo"}]}, "without text or answer_start"),
        ({"answers": [{"text": "Rollo", "answer_start": 3}]}, "'Rollo' does not stand at character 3"),
        ({"answers": [{"text": "o.", "answer_start": -2}]}, "does not stand at character -2"),
    ],
)
def test_a_record_that_cannot_be_used_is_named(tmp_path, changes, reason):
    path = file_of(tmp_path, [{"context": CONTEXT, "qas": [record(), record(**changes)]}])
    good, bad = squad.read(path)
    assert good == question()
    assert bad.place == f"{path}: data[0].paragraphs[0].qas[1]" and reason in bad.reason


def test_a_paragraph_without_text_is_named(tmp_path):
    (bad,) = squad.read(file_of(tmp_path, [{"context": "", "qas": [record()]}]))
    assert isinstance(bad, squad.BadRecord) and "paragraph without text" in bad.reason


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"a": 1}', b"\xff\xfe"])
def test_a_file_that_is_no_squad_is_refused(tmp_path, content):
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="other.json is no SQuAD file"):
        list(squad.read(path))


def test_one_window_holds_question_and_paragraph(vocabulary):
    (window,) = squad.Windows(vocabulary, length=128, stride=32).of(question())
    held = tokens(window)
    assert held[:6] == ["[CLS]", "who", "led", "them", "?", "[SEP]"] and held[-1] == "[SEP]"
    assert held[6:12] == ["norman", "##dy", "(", "french", ":", "norman"]
    assert len(window.word_ids) == 128 and not window.word_ids[len(held) :].any()
    assert list(window.type_ids) == [0] * 6 + [1] * (len(held) - 6) + [0] * (128 - len(held))
    assert tokens(window)[window.start] == tokens(window)[window.end] == "rollo"
    assert [CONTEXT[a:b] for a, b in window.offsets if a >= 0][:4] == ["Norman", "dy", "(", "French"]
    assert (window.offsets[:6] == -1).all() and (window.offsets[len(held) - 1 :] == -1).all()
    np.testing.assert_array_equal(window.has_most_context, window.offsets[:, 0] >= 0)


def test_windows_slide_by_the_stride_and_cover_everything(vocabulary):
    (whole,) = squad.Windows(vocabulary, length=128, stride=32).of(question())
    windows = squad.Windows(vocabulary, length=75, stride=5).of(question(asked="?" * 60))
    assert len(windows) > 2
    starts = [[tuple(o) for o in whole.offsets].index(tuple(w.offsets[w.offsets[:, 0] >= 0][0])) for w in windows]
    assert set(np.diff(starts)) == {5}
    covered = {tuple(o) for w in windows for o in w.offsets if o[0] >= 0}
    assert covered == {tuple(o) for o in whole.offsets if o[0] >= 0}
    # Each token of the paragraph has most context in exactly one window, and in none has it more than there.
    best = [tuple(o) for w in windows for o in w.offsets[w.has_most_context]]
    assert sorted(best) == sorted(covered)
    labelled = [w for w in windows if (w.start, w.end) != (0, 0)]
    assert labelled and all(CONTEXT[w.offsets[w.start, 0] : w.offsets[w.end, 1]] == "Rollo" for w in labelled)
    assert all("rollo" not in tokens(w) for w in windows if (w.start, w.end) == (0, 0))


@pytest.mark.parametrize("text", ["Normandie", "French: Normandie", "10th century", "Norman", "Normandy (French", "Normans"])
def test_a_label_stands_for_its_answer(vocabulary, text):
    (window,) = squad.Windows(vocabulary, length=128, stride=32).of(question(text))
    assert CONTEXT[window.offsets[window.start, 0] : window.offsets[window.end, 1]] == text


def test_a_long_question_is_cut(vocabulary):
    (window,) = squad.Windows(vocabulary, length=128, stride=32).of(question(asked="who " * 100))
    assert tokens(window).count("who") == squad.LONGEST_QUESTION


@pytest.mark.parametrize(("length", "stride"), [(384, 0), (67, 1), (128, 62)])
def test_windows_that_would_miss_something_are_refused(vocabulary, length, stride):
    with pytest.raises(ValueError, match=f"length={length}, stride={stride}"):
        squad.Windows(vocabulary, length, stride)


def logits_for(window, first, last):
    start, end = np.zeros(len(window.word_ids)), np.zeros(len(window.word_ids))
    start[first], end[last] = 5.0, 5.0
    return start, end


def test_the_answer_is_the_best_possible_span(vocabulary):
    (window,) = squad.Windows(vocabulary, length=128, stride=32).of(question("French: Normandie"))
    start, end = logits_for(window, window.start, window.end)
    assert squad.answer([window], start[None], end[None], CONTEXT) == "French: Normandie"
    # Neither a question's token nor a padding, nor an end before the start, nor a span that is too long.
    start[1], end[2], end[window.start - 1], end[-1] = 9.0, 9.0, 9.0, 9.0
    assert squad.answer([window], start[None], end[None], CONTEXT) == "French: Normandie"


def test_no_span_longer_than_the_longest(vocabulary, monkeypatch):
    monkeypatch.setattr(squad, "LONGEST_ANSWER", 2)
    (window,) = squad.Windows(vocabulary, length=128, stride=32).of(question("French: Normandie"))
    start, end = logits_for(window, window.start, window.end)
    assert len(squad.answer([window], start[None], end[None], CONTEXT).split()) <= 2


def test_nothing_possible_is_no_answer(vocabulary):
    assert squad.answer([], np.zeros((0, 4)), np.zeros((0, 4)), CONTEXT) == ""


@pytest.mark.parametrize(
    ("given", "exact", "f1"),
    [
        ("Rollo", 100, 100),
        ("the Rollo.", 100, 100),
        ("ROLLO", 100, 100),
        ("Duke Rollo", 0, 200 / 3),
        ("William", 0, 0),
        ("", 0, 0),
    ],
)
def test_scores_ignore_case_articles_and_punctuation(given, exact, f1):
    found = squad.score([question()], {"a": given})
    assert found == pytest.approx({"exact_match": exact, "f1": f1})


def test_the_best_gold_answer_counts_and_a_missing_one_scores_0():
    two = squad.Question("a", "?", CONTEXT, (("Rollo", 0), ("the Normans", 0)))
    other = squad.Question("b", "?", CONTEXT, (("France", 0),))
    assert squad.score([two, other], {"a": "Normans"}) == {"exact_match": 50.0, "f1": 50.0}


def test_gold_answers_of_real_data_score_100(data_dir):
    read = list(squad.read(data_dir / "squad" / "dev-small.json.gz"))
    questions = [q for q in read if isinstance(q, squad.Question)]
    assert len(questions) == len(read) == 810
    gold = {q.id: q.answers[0][0] for q in questions}
    assert squad.score(questions, gold) == {"exact_match": 100.0, "f1": 100.0}


def test_labels_of_real_data_give_the_answers_back(data_dir):
    """From the labels through the span to its text: equal as the official evaluation compares them."""
    questions = list(squad.read(data_dir / "squad" / "dev-small.json.gz"))[::10]
    windows = squad.Windows(data_dir / "bert_vocab" / "vocab.txt", length=192, stride=64)
    answers = {}
    for q in questions:
        of_question = windows.of(q)
        logits = [logits_for(w, w.start, w.end) for w in of_question]
        answers[q.id] = squad.answer(of_question, *np.array(logits).swapaxes(0, 1), q.context)
    found = squad.score(questions, answers)
    assert found["f1"] > 97 and found["exact_match"] > 95
