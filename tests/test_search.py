"""An index keeps what it acknowledged, whatever happens, and answers the same from every backend."""
import os
import random
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

from teran_nb.core.packed import Packed
from teran_nb.model.encoder import Encoded
from teran_nb.search.building import IndexConfig
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

index = Index.open(sys.argv[1], config=IndexConfig(centroids=100))
write = index.backend.write
def acknowledged(batch):
    write(batch)
    print(" ".join(x.image_id for x in batch), flush=True)
index.backend.write = acknowledged
index.add(images(1200), batch=40)
print("done", flush=True)
"""


def sentences(n=12, seed=9):
    g = torch.Generator().manual_seed(seed)
    sets = [F.normalize(torch.randn(int(k), 24, generator=g), dim=1) for k in torch.randint(1, 9, (n,), generator=g)]
    return Packed.from_sets(sets)


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


@pytest.mark.parametrize("config", [IndexConfig(centroids=60, merged_for_centroids=4), IndexConfig(dtype="float32", centroids=60, merged=4)], ids=["two stages", "three stages"])
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


def test_regions_in_8_bits_do_not_change_the_answers(tmp_path):
    import qdrant_edge

    everything, indexes = images(600), []
    at_once = partial(qdrant_edge.EdgeConfig, optimizers=qdrant_edge.EdgeOptimizersConfig(indexing_threshold=1))  # else from 10 MB on
    for name, int8 in (("plain", False), ("int8", True)):
        index = Index.open(tmp_path / name, config=IndexConfig(centroids=60, int8=int8))
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
    index = Index.connect(url, config=IndexConfig(centroids=100), **options)
    try:
        index.add(images(1200), batch=100)
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

    index = Index.connect(":memory:", config=IndexConfig(centroids=50))
    index.backend.waits = (0, 0)
    upsert, calls = index.backend.client.upsert, []

    def failing(collection, points, **how):
        calls.append(collection)
        if calls.count("images") > 3 and collection == "images":
            raise ResponseHandlingException(OSError("Connection refused"))
        return upsert(collection, points, **how)

    with patch.object(index.backend.client, "upsert", failing), pytest.raises(ConnectionError, match="nothing acknowledged is lost"):
        index.add(images(200), batch=40)
    assert len(index) == 120 and calls.count("images") == 6
    assert index.add(images(200), batch=40) == 80
    assert len(index.verify()) == 200


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_full_disk(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", str(place)], capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        index = Index.open(place / "index", config=IndexConfig(centroids=50))
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
