"""An index keeps what it acknowledged, whatever happens, and answers the same from every backend."""
import os
import random
import re
import signal
import subprocess
import sys
import time
import uuid
from functools import partial
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT

from teran_nb.core.files import read_json, write_json
from teran_nb.core.packed import Packed
from teran_nb.model.encoder import Encoded
from teran_nb.search.backends import example_backend, request_for
from teran_nb.search.building import IndexConfig
from teran_nb.search.edge import open_edge
from teran_nb.search.index import Index

pytest.importorskip("qdrant_edge", reason="the extra `search` is missing")


def images(n, seed=0):
    "Random regions, one to eleven an image."
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 12, (n,), generator=g)
    values = F.normalize(torch.randn(int(lengths.sum()), 24, generator=g), dim=1)
    return Encoded(torch.zeros(n, 1), Packed(values, F.pad(lengths.cumsum(0), (1, 0))), [f"im{i}" for i in range(n)])


CHILD = """
import sys
sys.path.insert(0, "tests")
from test_search import images
from teran_nb.search.building import IndexConfig
from teran_nb.search.index import Index

index = Index.open(sys.argv[1], config=IndexConfig(centroid_count=100))
write = index.backend.write
def acknowledged(batch):
    write(batch)
    print(" ".join(x.image_id for x in batch), flush=True)
index.backend.write = acknowledged
index.add(images(1200), batch_size=40)
print("done", flush=True)
"""


def sentences(n=12, seed=9):
    g = torch.Generator().manual_seed(seed)
    sets = [F.normalize(torch.randn(int(k), 24, generator=g), dim=1) for k in torch.randint(1, 9, (n,), generator=g)]
    return Packed.from_sets(sets) if sets else Packed(torch.zeros(0, 24), [0])


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_by_a_kill(tmp_path):
    everything, chance, kills = images(1200), random.Random(0), 0
    rows = {name: i for i, name in enumerate(everything.names)}
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
        index = Index.open(tmp_path / "index")
        there = {x.image_id: x for x in index.backend.read(known)}
        assert set(known) <= set(there)
        for name in known:
            assert (torch.from_numpy(there[name].regions) == everything.parts[rows[name]].half().float()).all()
        index.close()
    assert kills >= 2 and line.strip() == "done"
    index = Index.open(tmp_path / "index")
    assert index.names == everything.names
    index.verify()
    exact = Index()
    exact.add(everything)
    assert index.search(sentences(), 5, candidates=1200).names == exact.search(sentences(), 5).names
    index.close()


def test_killed_before_the_first_image(tmp_path):
    (tmp_path / "index" / "shard").mkdir(parents=True)
    index = Index.open(tmp_path / "index")
    assert len(index) == 0 and index.names == [] and index.search(sentences()).names == [[]] * 12
    index.add(images(50))
    assert len(index.verify()) == 50
    index.close()


def backends(tmp_path, config):
    yield Index(config=config)
    yield Index.open(tmp_path / "index", config=config)
    yield Index.connect(":memory:", config=config)
    if url := os.environ.get("QDRANT_URL"):
        yield Index.connect(url, config=config, api_key=os.environ.get("QDRANT_API_KEY", ""), name=f"test-{uuid.uuid4().hex[:8]}")


@pytest.mark.parametrize("config", [IndexConfig(centroid_count=60, merged_for_centroids=4), IndexConfig(dtype="float32", centroid_count=60, merged_count=4)], ids=["two stages", "three stages"])
def test_every_home_answers_the_same(tmp_path, config):
    everything, answers = images(250), []
    for index in backends(tmp_path, config):
        index.add(everything, {"kind": ["a", "b"] * 125, "year": list(range(250))})
        index.delete([f"im{i}" for i in range(0, 250, 10)])
        index.add(images(250, 1).take([3, 4, 5]), {"kind": ["c"] * 3, "year": [0] * 3}, update=True)
        found = [index.search(sentences(), 8, where, candidates=250, pooling=pooling)
                 for where in (None, {"kind": "a"}, {"year": (100, 120)}, {"kind": ["b", "c"], "year": (None, 50)})
                 for pooling in ("", "symm")]
        answers.append([[(hit.image_id, hit.similarity, hit.metadata, hit.alignment.best_regions.tolist()) for hit in row] for hits in found for row in hits])
        index.verify()
        if hasattr(index.backend, "client"):
            for name in (index.backend.name, index.backend.about_name):
                index.backend.client.delete_collection(name)
        index.close()
    for other in answers[1:]:
        assert other == answers[0]


@pytest.fixture
def homes(tmp_path):
    "300 images, in memory, in a folder and on a server; their second half has 1 in the column `half`."
    indexes = list(backends(tmp_path, IndexConfig(centroid_count=150)))
    for index in indexes:
        index.add(images(300), {"half": [i // 150 for i in range(300)]})
    yield indexes
    for index in indexes:
        if hasattr(index.backend, "client"):
            for name in (index.backend.name, index.backend.about_name):
                index.backend.client.delete_collection(name)
        index.close()


def test_columns_of_any_name_and_number(homes):
    "Names that Qdrant alone would read as paths; whole numbers and fractions in one column."
    columns = {"camera.model": range(10), "file name": range(10), "tags[]": [["x", "y"]] * 10, "weight": [1, .5, 2, 2.5, 7, [1, 2.5], 0, 4, -3, None]}
    for index in homes:
        index.add(images(10), columns, update=True)
        assert index.search(sentences(1), where={"camera.model": (7, None), "file name": 8, "tags[]": "y"}).names == [["im8"]]
        for where, rows in (((.4, 3), [0, 1, 2, 3, 5]), (2.5, [3, 5]), (2, [2]), ([1, 7], [0, 4, 5]), (0, [6])):
            assert sorted(index.search(sentences(1), where={"weight": where}).names[0]) == [f"im{i}" for i in rows]


def test_every_home_measures_the_same_recall(homes):
    memory, *others = homes
    assert memory.recall(sentences()) == 1 and not memory.calibrate(sentences()).is_calibrated  # every image is compared
    recalls = [{n: index.recall(sentences(), n, 5) for n in (20, 60, 100, 150, 200)} for index in others]
    assert all(found == recalls[0] for found in recalls) and recalls[0][20] < recalls[0][200]
    needed = [index.calibrate(sentences(), .9, 5).layout.centroid_state.calibrated_candidates for index in others]
    assert len(set(needed)) == 1
    for index in others:
        assert index.recall(sentences(), needed[0], 5) >= .9 and index.recall(sentences()) == 1 and index.recall(sentences(0)) == 0


def test_every_home_reads_the_same_images(homes):
    everything, memory = images(300), homes[0]
    for index in homes:
        assert index.names == everything.names and len(index.parts) == len(index.sizes) == 300 and index.boxes is None
        assert (index.parts[5] == everything.parts[5].half().float()).all()
        assert (index.parts[[7, 2]].values == index.parts[torch.tensor([7, 2])].values).all()
        assert index.take([1, 0]).names == ["im1", "im0"] and len(index.parts[:0]) == len(index.take([]).parts) == 0
        for pooling in ("mravgw", "symm"):
            torch.testing.assert_close(index.similarity(sentences(), pooling, 300), memory.similarity(sentences(), pooling), atol=5e-3, rtol=0)
        assert index.similarity(Packed(torch.zeros(0, 24), [0, 0])).abs().max() == 0
    for index in homes[1:]:
        index.candidates = 40
        assert (index.similarity(sentences()) > -torch.inf).sum(0).tolist() == [40] * 12
        assert (index.similarity(sentences(), "symm", 100) > -torch.inf).sum(0).tolist() == [100] * 12
    nothing = Index()
    assert nothing.similarity(sentences()).shape == (0, 12) and nothing.take([]).names == [] and len(nothing.parts[[]]) == 0


def test_centroids_are_learned_anew_in_either_field(homes):
    for index in homes[1:]:
        exact = index.search(sentences(), 3, candidates=300).names
        for centroid_count, field in ((0, "centroids_b"), (100, "centroids_a")):
            index.rebuild(centroid_count)
            assert index.layout.centroid_state.field == field and len(index.verify()) == 300
            assert index.search(sentences(), 3, candidates=300).names == exact
        assert len(index.backend.centroids) == 100


def test_conditions_and_candidates_limit_a_search(homes):
    memory = homes[0]
    for index in homes:
        hits = index.search(sentences(), 5, {"half": 1}, candidates=300)
        assert all(hit.metadata["half"] == 1 for row in hits for hit in row) and all(len(row) == 5 for row in hits)
        assert hits.names == memory.search(sentences(), 5, {"half": 1}).names
        assert index.search(sentences(), 5, {"half": 2}).names == [[]] * 12
        assert [len(row) for row in index.search(sentences(1), 300, candidates=3)] == [300]
        assert index.search(Packed(torch.zeros(0, 24), [0, 0])).names == [[]] and index.search(sentences(0)).names == []
        few, every = (index.search(sentences(), 2, candidates=n).names for n in (2, 300))
        assert index is memory or few != every
        for pooling in ("mwsr", "symm", "mravgw"):
            assert index.search(sentences(), 5, candidates=300, pooling=pooling).names == memory.search(sentences(), 5, pooling=pooling).names


def test_images_are_replaced_and_kept_without_regions(homes):
    everything = images(300)
    changed = everything.take([3])._replace(parts=everything.parts[[4]])
    hollow = Encoded(torch.zeros(1, 1), Packed(torch.zeros(0, 24), [0, 0]), ["hollow"])
    query = Packed(everything.parts[4], [0, len(everything.parts[4])])
    for index in homes:
        index.add(changed, {"half": [5]}, update=True)
        index.add(hollow)
        assert index.search(query, 2).names == [["im4", "im3"]] and len(index) == 301 and "hollow" not in index.search(query, 301).names[0]
        index.delete(["hollow", "nowhere"])
        index.add(everything.take([3]), {"half": [0]}, update=True)
        assert len(index) == 300 and index.names[-1] == "im3"


def test_regions_in_8_bits_do_not_change_the_answers(tmp_path):
    import qdrant_edge

    everything, indexes = images(600), []
    at_once = partial(qdrant_edge.EdgeConfig, optimizers=qdrant_edge.EdgeOptimizersConfig(indexing_threshold=1))  # else from 10 MB on
    for name, int8 in (("plain", False), ("int8", True)):
        index = Index.open(tmp_path / name, config=IndexConfig(centroid_count=60, int8=int8))
        with patch.object(qdrant_edge, "EdgeConfig", at_once):
            index.add(everything)
        index.optimize().verify()
        assert any((tmp_path / name).rglob("quantized.data*")) == int8
        index.close()
        indexes.append(Index.open(tmp_path / name))
    exact = Index()
    exact.add(everything)
    plain, int8 = indexes
    with patch.object(int8.backend, "query_for", wraps=int8.backend.query_for) as query:
        assert int8.search(sentences(), 5, candidates=600).names == exact.search(sentences(), 5).names
        assert int8.search(sentences(), 5, candidates=400).names == plain.search(sentences(), 5, candidates=400).names
        assert int8.search(sentences(), 5, candidates=400, pooling="symm").names == plain.search(sentences(), 5, candidates=400, pooling="symm").names
    assert [len(call.args[0].stages) for call in query.mock_calls] == [1] * 12 + [3] * 12 + [2] * 12
    int8.add(images(650))  # after the copies were made
    assert len(int8) == 650 and int8.search(sentences(), 5, candidates=500).names[0]
    for index in indexes:
        index.close()


@pytest.mark.skipif("QDRANT_URL" not in os.environ, reason="no Qdrant server: set QDRANT_URL (and QDRANT_API_KEY)")
def test_a_real_server(tmp_path):
    url, name = os.environ["QDRANT_URL"], f"test-{uuid.uuid4().hex[:8]}"
    options = {"api_key": os.environ.get("QDRANT_API_KEY", ""), "name": name}
    index = Index.connect(url, config=IndexConfig(centroid_count=100), **options)
    try:
        index.add(images(1200), batch_size=100)
        again = Index.connect(url, **options)
        exact = Index()
        exact.add(images(1200))
        assert again.names == exact.names
        assert again.search(sentences(), 5, candidates=1200).names == exact.search(sentences(), 5).names
        found = again.search(sentences(), 5, candidates=600).names
        shared = [len(set(a) & set(b)) for a, b in zip(found, exact.search(sentences(), 5).names)]
        assert sum(shared) >= 54  # of 60
        again.rebuild()
        again.verify()
    finally:
        for collection in (name, f"{name}.about"):
            index.backend.client.delete_collection(collection)


def test_a_server_that_goes_away(tmp_path):
    from qdrant_client.http.exceptions import ResponseHandlingException

    index = Index.connect(":memory:", config=IndexConfig(centroid_count=50))
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
    assert len(index.verify()) == 200


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_full_disk(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", str(place)], capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        index = Index.open(place / "index", config=IndexConfig(centroid_count=50))
        index.add(images(100))
        (place / "filler").write_bytes(b"0" * (os.statvfs(place).f_bavail * os.statvfs(place).f_bsize - 200 * 2**20))
        with pytest.raises(OSError, match="what was added before is safe"):
            index.add(images(300))
        assert len(index.search(sentences())[0]) == 10
        (place / "filler").unlink()
        assert index.add(images(300)) == 200
        assert len(index.verify()) == 300
        index.close()
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)

@pytest.fixture(scope="module")
def closed_edge(tmp_path_factory):
    "The folder of an index of sixty images that was closed normally."
    folder, memory = tmp_path_factory.mktemp("edge") / "index", example_backend()
    backend = open_edge(folder)
    backend.create(memory.layout)
    backend.save(memory.layout, memory.centroids)
    backend.write(list(memory.images.values()))
    while_open = read_json(folder / "checksums.json")
    assert while_open["partial"] and max(size for size, _ in while_open["files"].values()) < 2**16
    backend.close()
    closed = read_json(folder / "checksums.json")
    assert "partial" not in closed and len(closed["files"]) > 20
    return folder


@pytest.fixture
def edge_folder(closed_edge, tmp_path):
    "A copy of this folder; `cp` keeps the holes of its files, which are 300 MB."
    subprocess.run(["cp", "-r", str(closed_edge), str(tmp_path / "index")], check=True)
    return tmp_path / "index"


def region_file(folder):
    "The file with the vectors of all regions."
    path, = (folder / "shard").rglob("vector_storage-regions/vectors/chunk_0.mmap")
    return path


def page_file(folder):
    "The file with the metadata of all images."
    path, = (folder / "shard").rglob("payload_storage/page_0.dat")
    return path


def flip_bit(path, place):
    "Change one bit of a file."
    with open(path, "r+b") as file:
        file.seek(place)
        byte, = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def rotate(path):
    "Move the first byte of a page to the page's end, so that every number in it stands at a wrong place."
    with open(path, "r+b") as file:
        page = file.read(2**16)
        file.seek(0)
        file.write(page[1:] + page[:1])


def unlist(folder):
    "Remove the list of checksums, as a kill empties it."
    (folder / "checksums.json").unlink()


def edit_json(path, **changes):
    "Change the layout in index.json, and `residual`, which stands beside it."
    saved = read_json(path)
    for name, value in changes.items():
        (saved if name in saved else saved["layout"])[name] = value
    write_json(path, saved)


DAMAGES = {  # what is done to the folder, the error at opening, a part of its sentence
    "vectors shortened": (lambda f: os.truncate(region_file(f), 2**25 - 1), ValueError, "chunk_0.mmap has 33,554,431 bytes instead of 33,554,432; the index is damaged"),
    "vectors missing": (lambda f: region_file(f).unlink(), ValueError, "chunk_0.mmap is not there; the index is damaged, copy the index again"),
    "checksums edited": (lambda f: (f / "checksums.json").write_text((f / "checksums.json").read_text().replace("1", "2")), ValueError,
                         "checksums.json does not match its own checksum; copy the index again, make it again, or remove checksums.json to open it unchecked"),
    "metadata rotated": (lambda f: rotate(page_file(f)), ValueError, "page_0.dat does not match its checksum; the index is damaged"),
    "metadata rotated after a kill": (lambda f: (rotate(page_file(f)), unlist(f)), ValueError, "the engine cannot read or change"),
    "other dim": (lambda f: edit_json(f / "index.json", dim=8), ValueError, "are no centroids of 8 dimensions; rebuild the index"),
    "other dim without centroids": (lambda f: edit_json(f / "index.json", dim=8, centroid_state={"field": ""}), ValueError, "layout.dim is 8, and the vectors in"),
    "residual is a text": (lambda f: edit_json(f / "index.json", residual="?"), ValueError, 'residual is "?", not a number; copy it again'),
    "layout cut": (lambda f: (f / "index.json").write_text((f / "index.json").read_text()[:99]), ValueError, "index.json is not JSON"),
    "layout missing": (lambda f: (f / "index.json").unlink(), FileNotFoundError, "holds images; copy the index again"),
    "centroids empty": (lambda f: (f / "centroids_a.safetensors").write_bytes(b""), ValueError, "centroids_a.safetensors is not a whole safetensors file"),
    "centroids missing": (lambda f: (f / "centroids_a.safetensors").unlink(), FileNotFoundError, "centroids_a.safetensors"),
}


@pytest.mark.parametrize("damage, error, sentence", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_folder_is_refused_at_opening(edge_folder, damage, error, sentence):
    damage(edge_folder)
    for _ in range(2):  # the first refusal changes nothing and leaves the folder unlocked
        with pytest.raises(error, match=re.escape(sentence)):
            open_edge(edge_folder)


def test_a_folder_that_ends_the_engine_is_refused(edge_folder):
    unlist(edge_folder)
    with patch("teran_nb.search.checksums._READ_ALL", "import os; os.abort()"), pytest.raises(ValueError, match="it ends a process by signal 6"):
        open_edge(edge_folder)
    backend = open_edge(edge_folder)  # no damage: only the list is missing
    assert backend.count() == 60
    backend.close()


def test_verify_names_changed_vectors_until_they_are_mended(edge_folder):
    flip_bit(region_file(edge_folder), 1000)
    backend = open_edge(edge_folder)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"chunk_0\.mmap does not match its checksum; the index is damaged"):
            backend.verify()
        backend.optimize()  # nothing to arrange, so the list stays as it was
    backend.close()
    flip_bit(region_file(edge_folder), 1000)
    backend = open_edge(edge_folder)
    backend.verify()
    assert backend.count() == 60
    backend.close()


def test_after_a_kill_each_image_has_its_own_checksum(edge_folder):
    unlist(edge_folder)
    for place in (20, 1020):  # the engine's order varies, and the image without regions has a vector that nobody reads
        flip_bit(region_file(edge_folder), place)
    backend = open_edge(edge_folder)
    with pytest.raises(ValueError, match="does not match its checksum; the index is damaged, delete the image and add it again"):
        list(backend.scroll())
    backend.close()


def test_a_folder_ranks_sixty_images_as_the_memory(edge_folder):
    memory, backend, g = example_backend(), open_edge(edge_folder), torch.Generator().manual_seed(3)
    for words in F.normalize(torch.randn(3, 4, 16, generator=g), dim=-1).half().float().numpy():
        exact, = memory.search([request_for(memory.layout, words, 99, 0)])
        every, staged = backend.search([request_for(memory.layout, words, limit, candidates, memory.centroids) for limit, candidates in ((99, 0), (3, 40))])
        assert [x.image_id for x in every] == [x.image_id for x in exact] and len(every) == 59  # one has no regions
        assert [x.similarity for x in every] == pytest.approx([x.similarity for x in exact], abs=5e-3)
        assert all((a.regions == b.regions).all() and a.metadata == b.metadata for a, b in zip(every, exact))
        similarity = {x.image_id: x.similarity for x in every}
        assert [x.similarity for x in staged] == sorted([similarity[x.image_id] for x in staged], reverse=True) and len(staged) == 3
    backend.close()


@pytest.mark.parametrize("pooling", ["", "symm"])
def test_similarity_where_the_centroids_propose_too_few_images(tmp_path, pooling):
    g = torch.Generator().manual_seed(5)
    regions = F.normalize(torch.randn(300, 24, generator=g), dim=1)
    everything = Encoded(torch.zeros(300, 1), Packed(regions, range(301)), [f"im{i}" for i in range(300)])
    word = Packed(F.normalize(torch.randn(1, 24, generator=g), dim=1), [0, 1])
    exact, index = Index(), Index.open(tmp_path / "index", config=IndexConfig(centroid_count=250))
    exact.add(everything)
    index.add(everything)
    asked = []
    for method in ("search", "search_keys"):
        answer = getattr(index.backend, method)
        setattr(index.backend, method, lambda requests, answer=answer: asked.extend(requests) or answer(requests))
    some, every = index.similarity(word, pooling, candidates=200)[:, 0], exact.similarity(word, pooling)[:, 0]
    assert [len(request.stages) for request in asked] == [2, 1]  # 64 centroids do not hold 200 images, so the last stage compares all
    proposed = some.isfinite().nonzero().ravel()
    assert len(proposed) == 200
    if not pooling:  # MaxSim, by which the last stage ranks
        assert proposed.tolist() == every.topk(200).indices.sort().values.tolist()
    assert some[proposed].tolist() == pytest.approx(every[proposed].tolist(), abs=5e-3)
    index.close()
