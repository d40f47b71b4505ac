"""SPICE: the program's own numbers where they are at hand, and the program itself where Java and the jars are.

`TERAN_NB_SPICE` names the folder of the jars; where it is not set, they are looked for in ../shared too.
"""
import gzip
import hashlib
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from conftest import SHARED

from teran_nb.measure import spice
from teran_nb.measure.spice import concept_words, find_spice_program, parse_tuples, read_tuples, spice_scores, with_meanings

VALUES = SHARED / "spice" / "flickr8k-150x30.json.gz"
LONG = "A man with a red hat walks two small dogs on the beach . " * 16  # 208 words; one sentence of that length takes minutes
HARD = ["a black/white dog near a red car/auto", "a dog 🐕 runs on the beach", "two large baby elephants walk", "a motorcar beside a big auto", LONG,
        "", "A café with a naïve waiter near the old door", '"A sign" says "do not enter" to two men', "the man 's dog", "猫 と 犬",
        "the (small) [dog] {runs} <fast>", "a \\ backslash, a tab\tand a new\nline"]
IMAGES = [("a black car/auto", "a white auto", "a motorcar on the grass"), ("two dogs at the beach", "a small dog", ""),
          ("a big elephant and two small elephants", "two large animals"), ("an automobile", "a red car"), ("a man with a red hat", "two dogs")]


def counts(caption, image, synsets):
    "True and false positives, false negatives and F1 of one pair, by the definition (Anderson et al., section 3.2)."

    def meanings(concept):
        words = concept_words(concept)
        return set(words).union(*(synsets.get(word, ()) for word in words))

    def similar(a, b):
        return len(a) == len(b) and all(meanings(x) & meanings(y) for x, y in zip(a, b))

    tp = sum(any(similar(a, b) for b in image) for a in caption)
    if not tp:
        return 0, len(caption), len(image), 0.0
    precision, recall = tp / len(caption), tp / len(image)
    return tp, len(caption) - tp, len(image) - tp, 2 * (precision * recall) / (precision + recall)


@pytest.fixture
def jars(monkeypatch):
    "The program, or a skip that says how to get it."
    if "TERAN_NB_SPICE" not in os.environ and (SHARED / "spice" / "jars").is_dir():
        monkeypatch.setenv("TERAN_NB_SPICE", str(SHARED / "spice" / "jars"))
    try:
        return find_spice_program()
    except FileNotFoundError as e:
        missing = str(e).partition(", not found here")[0]
        pytest.skip(f"{missing}; find_spice_program() in teran_nb.measure.spice prints the commands that get it")


def test_the_programs_numbers():
    if not VALUES.is_file():
        pytest.skip(f"the numbers of the original SPICE are compared where {VALUES} is")
    pytest.importorskip("pycocoevalcap", reason="the synsets of SPICE are in pycocoevalcap: pip install pycocoevalcap==1.2")
    want = json.loads(gzip.decompress(VALUES.read_bytes()))
    captions, images = ([[tuple(t) for t in tuples] for tuples in want[name]] for name in ("caption_tuples", "image_tuples"))
    tuples = with_meanings({("", str(i)): t for i, t in enumerate(captions + images)})
    assert np.array_equal(spice_scores(captions, images, tuples.synsets), want["f"])
    rows, columns = np.nonzero(want["f"])
    for row, column in [*zip(rows[::7], columns[::7]), (0, 1), (149, 0)]:
        expected = tuple(want[k][row][column] for k in ("tp", "fp", "fn", "f"))
        assert counts(captions[row], images[column], tuples.synsets) == expected


def test_the_programs_synsets():
    "Of every word that Meteor knows, plain and with three endings, -ful among them: a checksum of what its own Java class printed."
    package = pytest.importorskip("pycocoevalcap", reason="the synsets of SPICE are in pycocoevalcap: pip install pycocoevalcap==1.2")
    jar = Path(package.__path__[0]) / "spice/lib/Meteor-1.5.jar"
    words = zipfile.ZipFile(jar).read("synonym/english.synsets").decode().splitlines()[::2]
    synsets_of = spice.read_synonyms(jar)
    printed = (f"{word}{ending} {sorted(synsets_of(word + ending))}\n" for word in words for ending in ("", "s", "ing", "ful"))
    assert hashlib.sha256("".join(printed).encode()).hexdigest() == "e629c57e07efe464b95293f1b3f1bd641e58981306c50a6db4fb49c39cba0a8e"


@pytest.mark.slow
def test_the_original_program(jars, tmp_path, monkeypatch):
    "Tuples of hard captions and the program's own scores; what was parsed before is not parsed again."
    printed, checked = [], spice.checked

    def keep(value, kind, where, *rest):
        if where == "the output of SPICE":
            printed.extend(value)
        return checked(value, kind, where, *rest)

    monkeypatch.setattr(spice, "checked", keep)
    groups = [*((text,) for text in HARD), *IMAGES]
    tuples = parse_tuples(groups, tmp_path / "kept")
    assert tuples[""] == [] and len(tuples[LONG]) == 10
    assert (r"car\/auto", "red") in tuples[HARD[0]] and ("dog", r"black\/white") in tuples[HARD[0]]
    assert ("dog", "run on", "beach") in tuples[HARD[1]] and ("café",) in tuples[HARD[6]]
    assert ("man", "two") in tuples[HARD[7]] and ("man", "have", "dog") in tuples[HARD[8]]
    assert any(set(concept_words(c)) == {"motorcar", "auto"} for (c, *_) in tuples[HARD[3]])  # merged within one caption
    matched = []
    for caption, image, item in zip(HARD, IMAGES, printed):  # the program was given these pairs
        want = item["scores"]["All"]
        assert counts(tuples[caption], tuples[image], tuples.synsets)[:3] == (want["tp"], want["fp"], want["fn"]), caption
        assert spice_scores([tuples[caption]], [tuples[image]], tuples.synsets).item() == want["f"]
        matched.append(want["tp"])
    assert matched == [1, 2, 3, 1, 6]
    tuples.save(tmp_path / "tuples.jsonl")
    again = read_tuples(tmp_path / "tuples.jsonl")
    assert (again.parsed, again.synsets) == (tuples.parsed, tuples.synsets)
    monkeypatch.setenv("PATH", "")  # without Java: everything was kept
    assert parse_tuples(groups[3:], tmp_path / "kept").parsed == {g: tuples.parsed[g] for g in groups[3:]}


@pytest.mark.slow
def test_words_of_cocos_evaluation(jars, tmp_path):
    "Captions are split as its wrapper does, and the tuples are those of the words."
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer
    texts = ["A black/white Dog near a red car/auto.", "don't stop... it's John's T-shirt -- ok?", *HARD[5:]]
    words = PTBTokenizer().tokenize({0: [{"caption": text} for text in texts]})[0]
    assert [group[0] for group in spice._coco_words(jars[0], [(text,) for text in texts])] == words
    tuples, of_words = parse_tuples(texts, tmp_path / "kept", coco=True), parse_tuples(words, tmp_path / "kept")
    assert [tuples[text] for text in texts] == [of_words[text] for text in words]
