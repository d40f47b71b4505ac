"""An index keeps what it acknowledged, whatever happens, and answers the same from every backend."""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import PIL.Image
import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT

from teran_nb.core.files import read_json, write_json
from teran_nb.core.packed import Packed
from teran_nb.data.collection import as_images
from teran_nb.model.encoded import CaptionWords, Encoded
from teran_nb.model.encoder import Encoder, EncoderInfo
from teran_nb.search.answers import Query
from teran_nb.search.backends import Request, example_backend
from teran_nb.search.first_stage import FirstStage
from teran_nb.search.index import Index, ask
from teran_nb.search.qdrant import open_edge

pytest.importorskip("qdrant_edge", reason="the extra `search` is missing")
quick = patch.object(FirstStage, "learn", partial(FirstStage.learn, steps=20))
of_few = patch("teran_nb.search.filling._LEARN_FROM", 1)  # `rebuild` learns of any number of images


def images(n, seed=0):
    "Random regions, one to eleven an image; the first ones of more images are the same."
    lengths = torch.randint(1, 12, (n,), generator=torch.Generator().manual_seed(seed))
    g = torch.Generator().manual_seed(seed + 1)
    sets = [F.normalize(torch.randn(length, 24, generator=g), dim=1) for length in lengths.tolist()]
    return Encoded(torch.zeros(n, 1), Packed.from_sets(sets), [f"im{i}" for i in range(n)])


CHILD = """
import sys
sys.path.insert(0, "tests")
from test_search import images
from functools import partial
from teran_nb.search import filling as page
from teran_nb.search.first_stage import FirstStage
from teran_nb.search.index import Index

page._SAMPLE_IMAGES = 500
page._LEARN_FROM = 1000
FirstStage.learn = partial(FirstStage.learn, steps=5)
index = Index(None, sys.argv[1])
write = Index._write
def acknowledged(self, encoded, payloads):
    write(self, encoded, payloads)
    print(" ".join(encoded.names), flush=True)
Index._write = acknowledged
index.add(images(1200), batch_size=40)
print("done", flush=True)
"""


def sentences(n=12, seed=9):
    g = torch.Generator().manual_seed(seed)
    sets = [F.normalize(torch.randn(int(k), 24, generator=g), dim=1) for k in torch.randint(1, 9, (n,), generator=g)]
    words = [CaptionWords([f"word{j}" for j in range(len(s))], [(0, 0)] * len(s), list(range(len(s)))) for s in sets]
    return Encoded(torch.zeros(n, 1), Packed.from_sets(sets) if sets else Packed(torch.zeros(0, 24), [0]), [f"sentence {j}" for j in range(n)], words)


def names(index, top=10, where=None, pooling="", n=12):
    "The best images of each sentence."
    return [index.search(sentence, top, where, pooling).ids for sentence in rows(sentences(n))]


def rows(encoded):
    return [encoded[i] for i in range(len(encoded))]


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_by_a_kill(tmp_path):
    everything, chance, kills = images(1200), random.Random(0), 0
    place = {name: i for i, name in enumerate(everything.names)}
    for _ in range(20):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path / "index")], cwd=ROOT, text=True, stdout=subprocess.PIPE)
        known, wanted = [], chance.randint(4, 12)
        for line in child.stdout:
            if line.strip() == "done":
                break
            known += line.split()
            if len(known) >= 40 * wanted:
                time.sleep(chance.random() / 20)
                child.send_signal(signal.SIGKILL)
                break
        else:
            pytest.fail("the child ended early")
        known += [name for line in child.stdout.read().splitlines() if line != "done" for name in line.split()]
        child.wait()
        if line.strip() == "done":
            break
        kills += 1
        index = Index(None, tmp_path / "index")
        there = {x.image_id: x for x in index.backend.read(known)}
        assert set(known) <= set(there)
        for name in known:
            assert (torch.from_numpy(there[name].regions) == everything.parts[place[name]].half().float()).all()
        index.close()
    assert kills >= 2 and line.strip() == "done"
    index = Index(None, tmp_path / "index")
    assert index.names == everything.names and index.layout.is_learned
    index.verify()
    exact = Index()
    exact.add(everything)
    index.candidates = 1200
    assert names(index, 5) == names(exact, 5)
    index.close()


def test_killed_before_the_first_image(tmp_path):
    index = Index(None, tmp_path / "index")
    with patch("teran_nb.search.qdrant.write_json", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        index.add(images(50))
    index.close()
    index = Index(None, tmp_path / "index")
    assert len(index) == 0 and index.names == [] and names(index) == [[]] * 12
    index.add(images(50))
    assert len(index.verify()) == 50
    index.close()


def test_nothing_that_others_wrote_is_deleted(tmp_path):
    for name in ("index/shard/mine.txt", "index/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("mine")
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match="index.json is not there"):
            Index(None, tmp_path / "index").add(images(3))
        (tmp_path / "index" / "notes.txt").unlink(missing_ok=True)
    assert (tmp_path / "index" / "shard" / "mine.txt").read_text() == "mine"
    index = Index(None, tmp_path / "good")
    index.add(images(50))
    (tmp_path / "good" / "notes.txt").write_text("mine")
    index.add(images(60))
    index.delete(["im3"])
    index.close()
    index = Index(None, tmp_path / "good")
    assert len(index.verify()) == 59 and (tmp_path / "good" / "notes.txt").read_text() == "mine"
    index.close()


def homes_of(tmp_path):
    yield Index()
    yield Index(None, tmp_path / "index")
    yield Index(None, ":memory:")
    if url := os.environ.get("QDRANT_URL"):
        yield Index(None, url, api_key=os.environ.get("QDRANT_API_KEY", ""), name=f"test-{uuid.uuid4().hex[:8]}")


def leave(index):
    "Close an index; on a server it is removed."
    if hasattr(index.backend, "client"):
        for name in (index.backend.name, index.backend.about_name):
            index.backend.client.delete_collection(name)
    index.close()


def test_every_home_answers_the_same(tmp_path):
    everything, answers = images(250), []
    for index in homes_of(tmp_path):
        index.add(everything, {"kind": ["a", "b"] * 125, "year": list(range(250))})
        index.delete([f"im{i}" for i in range(0, 250, 10)])
        index.add(images(250, 1)[[3, 4, 5]], {"kind": ["c"] * 3, "year": [0] * 3}, update=True)
        found = [index.search(sentence, 8, where, pooling) for sentence in rows(sentences())
                 for where in (None, {"kind": "a"}, {"year": (100, 120)}, {"kind": ["b", "c"], "year": (None, 50)})
                 for pooling in ("", "symm")]
        answers.append([[(hit.image_id, hit.score, hit.payload, hit.alignment.best_regions.tolist()) for hit in hits] for hits in found])
        leave(index.verify())
    for other in answers[1:]:
        assert other == answers[0]


@pytest.fixture
def homes(tmp_path):
    "300 images, in memory, in a folder and on a server; their second half has 1 in the column `half`."
    indexes = list(homes_of(tmp_path))
    for index in indexes:
        index.add(images(300), {"half": [i // 150 for i in range(300)]})
    yield indexes
    for index in indexes:
        leave(index)


def test_columns_of_any_name_and_number(homes):
    "Names that Qdrant alone would read as paths; whole numbers and fractions in one column."
    columns = {"camera.model": range(10), "file name": range(10), "tags[]": [["x", "y"]] * 10, "weight": [1, .5, 2, 2.5, 7, [1, 2.5], 0, 4, -3, None]}
    for index in homes:
        index.add(images(10), columns, update=True)
        assert names(index, 10, {"camera.model": (7, None), "file name": 8, "tags[]": "y"}, n=1) == [["im8"]]
        for where, found in (((.4, 3), [0, 1, 2, 3, 5]), (2.5, [3, 5]), (2, [2]), ([1, 7], [0, 4, 5]), (0, [6])):
            assert sorted(names(index, 10, {"weight": where}, n=1)[0]) == [f"im{i}" for i in found]


def test_every_home_measures_the_same_recall(homes):
    memory, *others = homes
    assert memory.recall(sentences()) == 1  # every image is compared
    with quick, of_few:
        for index in others:
            index.rebuild(sentences(300, 4)).verify()
    recalls = [{n: index.recall(sentences(), 5, n) for n in (10, 20, 60, 100, 200)} for index in others]
    for found in recalls:
        assert found == pytest.approx(recalls[0], abs=.05) and found[10] < found[200]  # equal candidates stand in any order
    for index in others:
        assert 24 <= index.candidates <= 300 and index.recall(sentences(0)) == 1
        index.add(images(40, 7)[range(20, 40)], {"half": [3] * 20}, update=True)
        index.verify()


class Both(Encoder):
    "The mean over weighted words of their best cosine, and the cosine of whole vectors."
    info = EncoderInfo("both", pooling="mravgw", global_weight=1.5)
    fingerprint = "both"

    def encode_captions(self, texts, batch_size=512, show_progress_bar=False):
        return weighted_sentences(len(texts), 2)


def weighted_sentences(n, seed):
    encoded, g = sentences(n, seed), torch.Generator().manual_seed(seed)
    weights = Packed(.2 + 2 * torch.rand(len(encoded.parts.values), 1, generator=g), encoded.parts.offsets)
    return replace(encoded, whole=F.normalize(torch.randn(n, 8, generator=g), dim=1), weights=weights)


def test_weights_of_words_and_whole_vectors_count_in_every_home(tmp_path):
    model, everything = Both(), images(300)
    everything = replace(everything, whole=F.normalize(torch.randn(300, 8, generator=torch.Generator().manual_seed(1)), dim=1))
    asked, answers = weighted_sentences(12, 9), []
    for place in ("", tmp_path / "index", ":memory:"):
        index = Index(model, place)
        index.add(everything)
        stored = index[:]
        exact = model.similarity(stored, asked).T.topk(5)
        for learned in (False, True) if place else (False,):
            with quick, of_few:
                index = index.rebuild() if learned else index
            index.candidates = 150 * learned
            hits = [index.search(sentence, 5) for sentence in rows(asked)]
            shared = sum(len({*h.ids} & {f"im{i}" for i in best}) for h, best in zip(hits, exact.indices.tolist()))
            assert shared >= 54 if learned else shared == 60
            best = hits[0].scores[0]
            assert best == pytest.approx(float(model.similarity(stored[[stored.names.index(hits[0].ids[0])]], asked[0])), abs=1e-5)
            other, off = weighted_sentences(1, 3), model.similarity(stored, weighted_sentences(1, 3))[:, 0]
            mixed = index.search({asked[0]: 2, asked[1]: 1}, 5, without=other)
            exactly = (model.similarity(stored, asked[:2]) @ torch.tensor([2., 1]) - off/2)
            assert mixed.scores[0] == pytest.approx(float(exactly.max()), abs=1e-4)
            assert learned or mixed.ids == [stored.names[i] for i in exactly.topk(5).indices]
            compared = index.search(asked[0], 0)  # the engine's own scores
            assert compared.scores[0] == pytest.approx(best, abs=5e-3)
            if not learned:
                answers.append([(h.ids, h.scores) for h in hits])
        index.close()
    assert answers[0] == answers[1] == answers[2]


def test_a_killed_rebuild_answers_exactly_and_is_done_again(tmp_path):
    exact, index = Index(), Index(None, tmp_path / "index")
    for each in (exact, index):
        each.add(images(300))
    with quick, of_few:
        index.rebuild(sentences(200, 4))
        with patch.object(type(index.backend), "write", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            index.rebuild(sentences(200, 5))
    index.close()
    index = Index(None, tmp_path / "index")
    assert not index.layout.is_learned and names(index, 5) == names(exact, 5)
    with quick, patch("teran_nb.search.filling._LEARN_FROM", 200):
        assert index.add(images(310)) == 10
    assert index.layout.is_learned and len(index.verify()) == 310
    index.close()


def test_few_sentences_leave_an_index_that_opens_again(tmp_path):
    exact, index = Index(), Index(None, tmp_path / "index")
    for each in (exact, index):
        each.add(images(300))
    for n, learns in ((1, False), (2, False), (12, True)):
        with quick, of_few:
            index.rebuild(sentences(n))
        index.close()
        index = Index(None, tmp_path / "index")
        index.candidates = 300
        assert index.layout.is_learned == learns and names(index, 5) == names(exact, 5)
    index.close()


def test_the_first_stage_is_learned_of_all_that_is_there(tmp_path):
    "Also where the names of an empty index were read before."
    index = Index(None, tmp_path / "index")
    assert index.names == []
    with quick, patch("teran_nb.search.filling._SAMPLE_IMAGES", 200), patch.object(FirstStage, "learn", wraps=FirstStage.learn) as learn:
        index.add(images(300), sentences=sentences(60))
    assert len(learn.call_args.args[0]) == 200 and index.layout.is_learned and len(index.verify()) == 300
    index.close()


def test_two_processes_fill_one_server():
    "One learns the first stage while the other adds: every image gets a vector, and a change is noticed."
    first = Index(None, ":memory:")
    second = Index(None, ":memory:", client=first.backend.client)
    everything, write = images(400), Index._write

    def interrupted(index, encoded, payloads):
        write(index, encoded, payloads)
        if index is second and len(second) == 50:
            first.add(everything[range(200, 400)], sentences=sentences(60))

    with quick, patch("teran_nb.search.filling._SAMPLE_IMAGES", 200), patch.object(Index, "_write", interrupted):
        second.add(everything[range(200)], batch_size=50)
    stored = [image for some in first.backend.scroll() for image in some]
    assert len(stored) == 400 and all(image.first is not None for image in stored)
    assert second.backend.stage.digest == first.backend.stage.digest == first.layout.first_stage
    with quick, of_few:
        second.rebuild(sentences(80, 3))
    with patch("teran_nb.search.index._OLD", 0):
        first.search(sentences()[0])
    assert first.backend.stage.digest == second.layout.first_stage != ""
    leave(first)


def test_a_process_that_is_killed_while_another_one_learns_leaves_no_image_behind():
    first = Index(None, ":memory:")
    second = Index(None, ":memory:", client=first.backend.client)
    everything, write = images(400), Index._write

    def interrupted(index, encoded, payloads):
        if index is second and len(second) == 50:
            first.add(everything[range(200, 400)], sentences=sentences(60))
            write(index, encoded, payloads)  # by what it knew before
            raise KeyboardInterrupt
        write(index, encoded, payloads)

    with quick, patch("teran_nb.search.filling._SAMPLE_IMAGES", 200), patch.object(Index, "_write", interrupted), pytest.raises(KeyboardInterrupt):
        second.add(everything[range(200)], batch_size=50)
    assert len(first) == 300 and sum(image.first is None for some in first.backend.scroll() for image in some) == 50
    first.add(everything[range(200, 210)])
    assert all(image.first is not None for some in first.backend.scroll() for image in some)
    first.candidates = 300
    exact = Index()
    exact.add(first[range(300)])
    assert names(first, 5) == names(exact, 5)
    leave(first)


def test_two_processes_that_learn_at_once_end_with_one_first_stage():
    first = Index(None, ":memory:")
    first.add(images(300))
    second = Index(None, ":memory:", client=first.backend.client)
    with quick, of_few:
        first.rebuild(sentences(60))
        with patch.object(second, "_give_missing", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            second.rebuild(sentences(80, 3))
        first._change(first_stage=first.backend.stage.digest)  # the last to say which one holds
        third = Index(None, ":memory:", client=first.backend.client)
        assert not third.layout.is_learned and third.candidates == 300  # every image is compared
        with patch("teran_nb.search.filling._LEARN_FROM", 200):
            third.add(images(310))
    stored = [image for some in third.backend.scroll() for image in some]
    assert {image.payload["first_stage"] for image in stored} == {third.layout.first_stage[:8]} and len(stored) == 310
    leave(first)


def test_what_one_process_stores_is_not_undone_by_another():
    "Measuring and judging take minutes, and end by changing the layout."
    first = Index(None, ":memory:")
    first.add(images(300))
    second = Index(None, ":memory:", client=first.backend.client)
    with quick, of_few:
        first.rebuild(sentences(60))
    second._change(judged=7)
    third = Index(None, ":memory:", client=first.backend.client)
    assert third.layout.first_stage == first.layout.first_stage != "" and third.layout.judged == 7
    leave(first)


def test_a_request_stays_below_what_a_server_takes():
    many = Encoded(torch.zeros(64, 1), Packed(F.normalize(torch.randn(64 * 36, 1024), dim=1), range(0, 64 * 36 + 1, 36)), [f"im{i}" for i in range(64)])
    index = Index(None, ":memory:")
    sizes, call = [], type(index.backend).call

    def measured(backend, method, *args, **kwargs):
        if method == "upsert" and args[0] == "images":
            sizes.append(sum(len(json.dumps(point.vector)) for point in args[1]))
        return call(backend, method, *args, **kwargs)

    with patch.object(type(index.backend), "call", measured):
        index.add(many)
    assert len(index) == 64 and len(sizes) > 1 and max(sizes) < 16 * 2**20
    leave(index)


def test_the_place_of_a_server_is_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place in ("localhost:6333", Path("http://localhost:6333")):
        with pytest.raises(ValueError, match="begins with http://"):
            Index(None, place)
    assert not list(tmp_path.iterdir())


def test_an_index_keeps_its_model(tmp_path):
    class Other(Both):
        fingerprint = "other"

    index = Index(Both(), tmp_path / "index")
    everything = images(60)
    index.add(replace(everything, whole=F.normalize(torch.randn(60, 8), dim=1)))
    for model in (None, Both()):
        index.model = model
        with pytest.raises(ValueError, match="holds what another model encoded"):
            ask(Other(), index, ["a kite"])
        assert index.model is model
    bad = replace(everything[[0]], names=["nan"], whole=torch.full((1, 8), torch.nan))
    with pytest.raises(ValueError, match="NaN or infinite vectors among the images from 'nan' on"):
        index.add(bad)
    with pytest.raises(ValueError, match="rerank=5 needs a model that reads"):
        ask(Both(), index, ["a kite"], rerank=5)
    with pytest.raises(ValueError, match="rerank=5 needs a model that reads"):
        ask(Both(), index[:], ["a kite"], rerank=5)
    mask = torch.arange(60).numpy() % 20 == 3
    assert index[mask].names == ["im3", "im23", "im43"]
    with pytest.raises(ValueError, match="no quotation mark"):
        index.add(everything, {'5" lens': range(60)})
    index.close()


def test_a_copy_counts_as_found_by_the_other(tmp_path):
    few = images(40)
    index = Index(None, tmp_path / "index")
    index.add(Encoded(torch.zeros(320, 1), Packed.cat([few.parts] * 8), [f"copy {i}" for i in range(320)]))
    with quick, of_few:
        index.rebuild(sentences(300, 4))
    asked = sentences(60)
    best, found = ([[image.image_id for image in index._propose(Query(s), 4, n, {})] for s in rows(asked)] for n in (0, 12))
    by_name = sum(len({*a} & {*b}) for a, b in zip(best, found)) / 240
    original = {f"copy {i}": i % 40 for i in range(320)}
    by_picture = sum(original[name] == original[a[0]] for a, b in zip(best, found) for name in b) / 240
    assert index.recall(asked, 4, 12) == pytest.approx(by_picture, abs=.04) and by_picture > by_name + .05
    index.close()


class OneColour(Encoder):
    "Each picture is one region, its mean colour."
    fingerprint, info = "one colour", EncoderInfo(reads="pictures")

    def encode_images(self, images, batch_size=128, show_progress_bar=False):
        images = as_images(images)
        colours = torch.tensor([image.picture().resize((1, 1)).getpixel((0, 0)) for image in images]).float()
        return Encoded(torch.zeros(len(images), 1), Packed(F.normalize(colours + 1, dim=1), range(len(images) + 1)), [image.id for image in images], images=images)


def test_a_path_means_the_same_picture_from_every_folder(tmp_path, monkeypatch):
    for trip, colour in (("one", "red"), ("two", "blue")):
        (tmp_path / trip / "photos").mkdir(parents=True)
        PIL.Image.new("RGB", (8, 8), colour).save(tmp_path / trip / "photos/IMG_1.png")
    index = Index(OneColour(), tmp_path / "index")
    monkeypatch.chdir(tmp_path / "one")
    assert index.add("photos") == 1 and index.add("photos") == 0
    monkeypatch.chdir(tmp_path / "two")
    with pytest.raises(ValueError, match="is another picture of this name"):
        index.add("photos")
    stored = index.backend.read(["IMG_1"])[0].payload
    assert stored["path"] == str(tmp_path / "one/photos/IMG_1.png") and "taken" not in stored
    (tmp_path / "one/photos").rename(tmp_path / "one/pictures")
    with pytest.raises(ValueError, match="which is not there any more.*update=True"):
        index.add(tmp_path / "one/pictures")
    assert index.add(tmp_path / "one/pictures", update=True) == 1
    index.close()


def test_a_picture_that_changed_is_encoded_again(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("a", "b"):
        PIL.Image.new("RGB", (8, 8), "red").save(folder / f"{name}.png")
    index = Index(OneColour(), tmp_path / "index")
    assert index.add(folder) == 2 and index.add(folder) == 0
    PIL.Image.new("RGB", (8, 8), "blue").save(folder / "a.png")
    os.utime(folder / "a.png", ns=(1, 1))
    assert index.add(folder) == 1 and index.add(folder) == 0 and index.names == ["a", "b"]
    blue = Encoded(torch.zeros(1, 1), Packed(F.normalize(torch.tensor([[0., 0, 1]]), dim=1), [0, 1]), ["blue"])
    assert index.search(blue, 1).ids == ["a"]
    index.close()


def test_a_link_to_an_empty_folder_becomes_an_index(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "index").symlink_to(tmp_path / "disk")
    index = Index(None, tmp_path / "index")
    assert index.add(images(5)) == 5
    index.close()
    assert len(Index(None, tmp_path / "disk")) == 5 and (tmp_path / "index").is_symlink()


def test_every_home_reads_the_same_images(homes):
    everything, memory = images(300), homes[0]
    for index in homes:
        assert index.names == everything.names and index[:1].boxes is None and index[5].names == ["im5"]
        torch.testing.assert_close(index[5].parts.values, F.normalize(everything.parts[5].half().float(), dim=1))
        assert index[[1, 0]].names == ["im1", "im0"] and len(index[:0]) == len(index[[]]) == 0
        for pooling in ("mravgw", "symm"):
            index.candidates = 300
            scores = ask(None, index, sentences(), 0, pooling).matrix(index.names)
            torch.testing.assert_close(scores, ask(None, memory, sentences(), 0, pooling).matrix(index.names), atol=5e-3, rtol=0)
    for index in homes[1:]:
        for pooling in ("", "symm"):
            index.candidates = 40
            assert [len(hits) for hits in ask(None, index, sentences(), 0, pooling)] == [40] * 12
    nothing = Index()
    assert [len(hits) for hits in ask(None, nothing, sentences())] == [0] * 12 and nothing[[]].names == []


def test_conditions_and_candidates_limit_a_search(homes):
    memory = homes[0]
    for index in homes:
        hits = index.search(sentences()[0], 5, {"half": 1})
        assert [hit.payload["half"] for hit in hits] == [1] * 5
        assert names(index, 5, {"half": 1}) == names(memory, 5, {"half": 1})
        assert names(index, 5, {"half": 2}) == names(index, 5, {"half": []}) == [[]] * 12
        for pooling in ("mwsr", "symm", "mravgw"):
            assert names(index, 5, None, pooling) == names(memory, 5, None, pooling)
        index.candidates = 3
        assert len(index.search(sentences()[0], 300)) == 300


def test_images_are_replaced_and_kept_without_regions(homes):
    everything = images(300)
    changed = replace(everything[[3]], parts=everything.parts[[4]])
    hollow = Encoded(torch.zeros(1, 1), Packed(torch.zeros(0, 24), [0, 0]), ["hollow"])
    query = Encoded(torch.zeros(1, 1), everything.parts[[4]], ["like image 4"])
    for index in homes:
        index.add(changed, {"half": [5]}, update=True)
        index.add(hollow)
        assert index.search(query, 2).ids == ["im4", "im3"] and len(index) == 301 and "hollow" not in index.search(query, 301).ids
        with pytest.warns(UserWarning, match="such as 'nowhere'"):
            assert index.delete(["hollow", "nowhere"]) == 1
        index.add(everything[[3]], {"half": [0]}, update=True)
        assert len(index) == 300 and index.names[-1] == "im3"


@pytest.mark.skipif("QDRANT_URL" not in os.environ, reason="no Qdrant server: set QDRANT_URL (and QDRANT_API_KEY)")
def test_a_real_server(tmp_path):
    options = {"api_key": os.environ.get("QDRANT_API_KEY", ""), "name": f"test-{uuid.uuid4().hex[:8]}"}
    index = Index(None, os.environ["QDRANT_URL"], **options)
    try:
        index.add(images(1200), batch_size=100)
        again = Index(None, os.environ["QDRANT_URL"], **options)
        exact = Index()
        exact.add(images(1200))
        assert again.names == exact.names
        again.candidates = 1200
        assert names(again, 5) == names(exact, 5)
        again.candidates = 600
        shared = [len(set(a) & set(b)) for a, b in zip(names(again, 5), names(exact, 5))]
        assert sum(shared) >= 54  # of 60
        again.verify()
    finally:
        leave(index)


def test_a_server_that_goes_away(tmp_path):
    from qdrant_client.http.exceptions import ResponseHandlingException

    index = Index(None, ":memory:")
    index.backend.waits = (0, 0)
    upsert, calls = index.backend.client.upsert, []

    def failing(collection, points, **how):
        calls.append(collection)
        if calls.count("images") > 3 and collection == "images":
            raise ResponseHandlingException(OSError("Connection refused"))
        return upsert(collection, points, **how)

    with patch.object(index.backend.client, "upsert", failing), pytest.raises(ConnectionError, match="nothing acknowledged is lost"):
        index.add(images(200), batch_size=40)
    assert len(index) == 120 and calls.count("images") == 6
    assert index.add(images(200), batch_size=40) == 80
    assert len(index.verify()) == 200 and index.names == images(200).names


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_full_disk(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", str(place)], capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        index = Index(None, place / "index")
        index.add(images(100))
        (place / "filler").write_bytes(b"0" * (os.statvfs(place).f_bavail * os.statvfs(place).f_bsize - 200 * 2**20))
        with pytest.raises(OSError, match="what was added before is safe"):
            index.add(images(300))
        assert len(index.search(sentences()[0])) == 10
        (place / "filler").unlink()
        assert index.add(images(300)) == 200
        assert len(index.verify()) == 300
        index.close()
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture(scope="module")
def closed_edge(tmp_path_factory):
    "The folder of an index of sixty images that was closed normally."
    folder, (memory, stage) = tmp_path_factory.mktemp("edge") / "index", example_backend()
    backend = open_edge(folder)
    backend.begin(replace(memory.layout, first_stage=""))
    backend.keep(stage)
    backend.save(memory.layout)
    backend.write(list(memory.images.values()))
    backend.close()
    return folder


@pytest.fixture
def edge_folder(closed_edge, tmp_path):
    "A copy of this folder; `cp` keeps the holes of its files, which are 300 MB."
    subprocess.run(["cp", "-r", str(closed_edge), str(tmp_path / "index")], check=True)
    return tmp_path / "index"


def edit_json(path, **changes):
    "Change fields of index.json."
    write_json(path, read_json(path) | changes)


DAMAGES = {  # what is done to the folder, the error at opening, a part of its sentence
    "other dim": (lambda f: edit_json(f / "index.json", dim=8), ValueError, "first_stage.safetensors is no first stage of this index (it is of another index); copy the index again"),
    "dim is a text": (lambda f: edit_json(f / "index.json", dim="?"), ValueError, "index.json is no layout of an index (Layout.dim"),
    "unknown field": (lambda f: edit_json(f / "index.json", int8=True), ValueError, "index.json is no layout of an index (unknown field of Layout 'int8'"),
    "layout cut": (lambda f: (f / "index.json").write_text((f / "index.json").read_text()[:20]), ValueError, "index.json is not JSON"),
    "layout missing": (lambda f: (f / "index.json").unlink(), FileNotFoundError, "is no index: index.json is not there; copy the index again"),
    "engine's files missing": (lambda f: shutil.rmtree(f / "shard"), FileNotFoundError, "shard is not there; copy the index again"),
    "first stage empty": (lambda f: (f / "first_stage.safetensors").write_bytes(b""), ValueError, "first_stage.safetensors is not a whole safetensors file"),
    "first stage missing": (lambda f: (f / "first_stage.safetensors").unlink(), FileNotFoundError, "first_stage.safetensors"),
}


@pytest.mark.parametrize("damage, error, sentence", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_folder_is_refused_at_opening(edge_folder, damage, error, sentence):
    damage(edge_folder)
    for _ in range(2):  # the first refusal changes nothing and leaves the folder unlocked
        with pytest.raises(error, match=re.escape(sentence)):
            open_edge(edge_folder)


def test_each_image_has_its_own_checksum(edge_folder):
    path, = (edge_folder / "shard").rglob("vector_storage-regions/vectors/chunk_0.mmap")
    with open(path, "r+b") as file:
        for place in (20, 1020):  # the engine's order varies, and the image without regions has a vector that nobody reads
            file.seek(place)
            byte, = file.read(1)
            file.seek(place)
            file.write(bytes([byte ^ 1]))
    index = Index(None, edge_folder)
    with pytest.raises(ValueError, match="does not match its checksum; the index is damaged: copy it again, or delete the image and add it again"):
        index.verify()
    index.close()


def test_a_folder_ranks_sixty_images_as_the_memory(edge_folder):
    (memory, stage), backend, g = example_backend(), open_edge(edge_folder), torch.Generator().manual_seed(3)
    for words in F.normalize(torch.randn(3, 4, 16, generator=g), dim=-1).half().float():
        first = F.pad(stage.sentence_vector(words), (0, 16)).numpy()
        exact, every = (home.search(Request(words.numpy(), 0 * first, 99)) for home in (memory, backend))
        staged = backend.search(Request(words.numpy(), first, 3, 40))
        assert [x.image_id for x in every] == [x.image_id for x in exact] and len(every) == 59  # one has no regions
        assert [x.score for x in every] == pytest.approx([x.score for x in exact], abs=5e-3)
        assert all((a.regions == b.regions).all() and a.payload == b.payload for a, b in zip(every, exact))
        score = {x.image_id: x.score for x in every}
        assert [x.score for x in staged] == sorted([score[x.image_id] for x in staged], reverse=True) and len(staged) == 3
    backend.close()


def test_a_pooling_that_does_not_add_words_is_searched_in_two_stages(tmp_path):
    class Symmetric(Encoder):
        info = EncoderInfo("symmetric", pooling="symm")
        fingerprint = "symmetric"

    exact, index = Index(Symmetric()), Index(Symmetric(), tmp_path / "index")
    for each in (exact, index):
        each.add(images(300))
    with quick, of_few:
        index.rebuild(sentences(200, 4))
    index.close()
    index = Index(Symmetric(), tmp_path / "index")
    index.candidates = 200
    shared = [len(set(a) & set(b)) for a, b in zip(names(index, 5), names(exact, 5))]
    assert len(index.verify()) == 300 and sum(shared) >= 54
    index.close()
