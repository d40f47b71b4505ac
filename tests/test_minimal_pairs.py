"""Every minimal pair of drawn scenes is read back from its text and checked against the scene: the first caption is true, the second false."""
import re
from collections import Counter
from itertools import product
from random import Random

import pytest

from teran_nb.scenes.clipart import PAINTS
from teran_nb.scenes.drawing import Scene, Thing, compose
from teran_nb.scenes.grammar import NAMES, NUMBERS, plural
from teran_nb.scenes.minimal_pairs import CHANGES, minimal_pairs

KIND_OF = {word: kind for kind, names in NAMES.items() for name in names for word in (name, plural(name))}
COVERS = {"bird": {"bird", "duck"}}  # the grammar calls ducks birds too
OPENING = "^(we see|you can see|a picture of) "
SPATIAL = "to the left of|left of|to the right of|right of|above|over|below|under"
SIDES = {"left": (0, 1), "right": (0, -1), "above": (1, 1), "over": (1, 1), "below": (1, -1), "under": (1, -1)}  # axis, sign


def phrase(text):
    "Kind, colour, size and number (0: at least one) of a noun phrase."
    words = text.split()
    noun, = (w for w in words if w in KIND_OF)
    colour = [w for w in words if w in PAINTS]
    size = [w for w in words if w in ("small", "large")]
    number = NUMBERS.index(words[0]) + 1 if words[0] in NUMBERS else 0
    rest = set(words) - {noun, *colour, *size, "a", "an", "in", *NUMBERS}
    assert not rest and len(colour) < 2 and len(size) < 2, text
    return KIND_OF[noun], colour[0] if colour else None, size[0] if size else None, number


def fitting(scene, text):
    kind, colour, size, number = phrase(text)
    kinds = COVERS.get(kind, {kind})
    fits = [t for t in scene.things if t.kind in kinds and colour in (None, t.colour) and size in (None, t.size)]
    return fits if not number or len(fits) == number else []


def centre(thing, axis):
    return (thing.box[axis] + thing.box[axis + 2]) / 2


def truth(scene, caption):
    "True, False, or None where a relation is neither on its side nor on the other."
    text = re.sub(OPENING, "", caption)
    if " but no " in text:
        there, absent = text.split(" but no ")
        return bool(fitting(scene, there)) and not fitting(scene, absent)
    if relation := re.search(f" ({SPATIAL}) ", text):
        a, b = text[:relation.start()], text[relation.end():]
        axis, sign = SIDES[relation[1].replace("to the ", "").split()[0]]
        pairs = [(x, y) for x in fitting(scene, a) for y in fitting(scene, b) if x is not y]
        offsets = [sign * (centre(y, axis) - centre(x, axis)) for x, y in pairs]
        if all(o <= 0 for o in offsets):
            return False
        return True if any(o > 0 for o in offsets) else None
    parts = text.split(" and ")
    if len(parts) == 1:
        return bool(fitting(scene, text))
    return any(x is not y for x in fitting(scene, parts[0]) for y in fitting(scene, parts[1]))


@pytest.fixture(scope="module")
def asked():
    "Pairs of two hundred scenes, two of a kind."
    pairs = []
    for number in range(200):
        scene = compose(number)
        pairs += [(scene, pair.kind, pair.true_caption, pair.false_caption) for pair in minimal_pairs(scene, Random(number), each=2)]
    return pairs


def test_the_first_caption_is_true_and_the_second_false(asked):
    wrong = [pair for pair in asked if (truth(pair[0], pair[2]), truth(pair[0], pair[3])) != (True, False)]
    assert not wrong, wrong[:3]
    counts = Counter(kind for _, kind, _, _ in asked)
    assert set(counts) == set(CHANGES) and min(counts.values()) > 90, counts


def test_the_check_would_notice():
    "A scene in which both captions of a swap are true."
    colours = "red", "blue"
    scene = Scene(0, "meadow", tuple(Thing(kind, colour, "small", (100 * i, 100, 100 * i + 50, 150)) for i, (kind, colour) in enumerate(product(("cat", "dog"), colours))))
    assert truth(scene, "we see a red cat and a blue dog") and truth(scene, "we see a blue cat and a red dog")
    assert truth(scene, "we see three cats") is False and truth(scene, "we see one dog") is False
    assert truth(scene, "a red cat left of a blue dog") and truth(scene, "a blue dog left of a cat") is False


def test_only_the_changed_words_differ(asked):
    for _, kind, true, false in asked:
        a, b = (Counter(re.sub(r"\ban\b", "a", text).split()) for text in (true, false))
        if kind.startswith("swapped") or kind == "negation":
            assert a == b, (kind, true, false)
        elif kind in ("object", "colour", "size"):
            a["in"], b["in"] = 0, 0  # a person is in a colour
            assert (a - b).total() == (b - a).total() == 1, (kind, true, false)


def test_no_number_is_true_much_more_often_than_false():
    "Otherwise a model could choose the commoner number without looking."
    numbers, scenes = Counter(), map(compose, range(400))
    counted = [pair for scene in scenes for pair in minimal_pairs(scene, Random(scene.seed), ["number"])]
    for pair in counted:
        numbers[phrase(re.sub(OPENING, "", pair.true_caption))[3]] += 1
        numbers[phrase(re.sub(OPENING, "", pair.false_caption))[3]] -= 1
    assert len(counted) > 150 and max(map(abs, numbers.values())) < .15 * len(counted), numbers
