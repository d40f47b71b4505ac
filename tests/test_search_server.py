"""A server that misbehaves: each fault ends in one sentence that names the address and the cure, and never becomes an answer."""
import json
import threading
import time
import warnings
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_search import images, sentences

from teran_nb.search.backends import Request
from teran_nb.search.index import Index
from teran_nb.search.server import ServerBackend

qdrant_client = pytest.importorskip("qdrant_client", reason="the extra `search` is missing")


class FakeServer:
    "Qdrant's imitation behind HTTP; `fault` gets the path and the right answer, and returns another one: status, headers, text."

    def __init__(self, client):
        self.client, self.fault, self.paths, self.ended = client, None, [], threading.Event()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "null")
                fake.paths.append(self.path)
                result = fake.result(self.path.partition("?")[0], body)
                status, headers, text = (fake.fault and fake.fault(self.path, result)) or (200, {}, ok(result))
                try:
                    self.send_response(status)
                    for name, value in {"Content-Type": "application/json", "Content-Length": len(text.encode()), **headers}.items():
                        self.send_header(name, str(value))
                    self.end_headers()
                    self.wfile.write(text.encode())
                except BrokenPipeError:  # the client has gone
                    pass

            do_GET = do_POST = answer

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def result(self, path, body):
        "What a Qdrant server answers."
        name, _, what = path.removeprefix("/collections/").partition("/")
        client = self.client
        if what == "exists":
            return {"exists": client.collection_exists(name)}
        if what == "":
            return json.loads(client.get_collection(name).model_dump_json())
        if what == "points":
            return [json.loads(p.model_dump_json()) for p in client.retrieve(name, body["ids"], body["with_payload"], body["with_vector"])]
        if what == "points/count":
            return {"count": client.count(name).count}
        if what == "points/scroll":
            points, offset = client.scroll(name, limit=body["limit"], offset=body.get("offset"), with_payload=True, with_vectors=body["with_vector"])
            return {"points": [json.loads(p.model_dump_json()) for p in points], "next_page_offset": offset}
        if what == "points/query/batch":
            requests = [qdrant_client.models.QueryRequest(**{**each, "params": None}) for each in body["searches"]]
            return [json.loads(answer.model_dump_json()) for answer in client.query_batch_points(name, requests)]
        raise AssertionError(path)


def ok(result):
    return json.dumps({"result": result, "status": "ok", "time": 0})


@pytest.fixture(scope="module")
def filled():
    "The imitation that holds an index of three hundred images."
    index = Index(None, ":memory:")
    index.add(images(300))
    return index.backend.client


@pytest.fixture
def server(filled, monkeypatch):
    monkeypatch.setattr(ServerBackend, "timeout", 1)
    monkeypatch.setattr(ServerBackend, "waits", (0, 0))
    monkeypatch.setattr(ServerBackend, "patience", .1)
    fake = FakeServer(filled)
    yield fake
    fake.ended.set()
    fake.server.shutdown()
    fake.server.server_close()


def test_a_server_over_http_answers_as_the_imitation(server, filled):
    expected, index = Index(None, ":memory:", client=filled), Index(None, server.url)
    for j in range(3):
        assert index.search(sentences()[j], 5).ids == expected.search(sentences()[j], 5).ids
    assert len(index.verify()) == 300 and index.names == expected.names


def test_the_graph_only_proposes(server, monkeypatch):
    "Among the few candidates of a later stage the engine's graph misses some, so each of them is compared."
    backend = Index(None, server.url).backend
    asked = []
    def answer(query):
        asked.append(query)
        return [SimpleNamespace(id=k) for k in range(3)] if query.with_payload is False else []
    monkeypatch.setattr(backend, "_query", answer)
    def stages(request):
        "Every stage of the queries of a search: those that propose, and those that compare."
        asked.clear()
        backend.search(request)
        both = [*asked, *[stage for query in asked for stage in query.prefetch or ()]]
        proposing = [stage for stage in both if stage.params.hnsw_ef]
        return proposing, [stage for stage in both if stage not in proposing]
    words = np.ones((2, backend.layout.dim), np.float32)
    first = np.ones(backend.layout.first_dim, np.float32)
    for candidates, width in ((24, 144), (200, 1024), (1000, 2000)):
        (proposing,), (comparing,) = stages(Request(words, first, 10, candidates))
        assert (proposing.limit, proposing.params.hnsw_ef, comparing.prefetch) == (candidates, width, [proposing])
        assert comparing.params.exact and not proposing.params.exact
    proposing, comparing = stages(Request(words, first, 10, 0))
    assert not proposing and all(stage.params.exact for stage in comparing)

    # of a sum the graph is searched once, too, and each summand is compared for the images that it proposed
    backend.layout = replace(backend.layout, whole_dim=4, global_weight=1.)
    first = np.ones(backend.layout.first_dim, np.float32)
    (proposing,), (answer, *summands) = stages(Request(words, first, 10, 24, words))
    assert proposing is asked[0] and proposing.params.hnsw_ef == 144
    assert len(summands) == 3 and answer.params.exact and all(stage.params.exact and not stage.prefetch for stage in summands)
    assert all(stage.filter.must[0].has_id == [0, 1, 2] for stage in summands)


def slow(server, path, result):
    server.ended.wait(3)


def changed(change, part="query"):
    "A fault that changes the right answers of some paths."
    def fault(server, path, result):
        if part in path:
            return 200, {}, ok(change(result))
    return fault


def each_point(**fields):
    return changed(lambda answers: [{"points": [point | fields for point in answer["points"]]} for answer in answers])


FAULTS = {  # what is wrong, the error, a part of its sentence, how often the last path was asked
    "slow": (slow, ConnectionError, "it does not answer (timed out), tried 3 times", 3),
    "busy": (lambda s, p, r: (429, {"Retry-After": "0"}, ok(None)), ConnectionError, "it is busy", 3),
    "busy, without a time": (lambda s, p, r: (429, {}, "{}"), ConnectionError, "it answers 429", 3),
    "error": (lambda s, p, r: (500, {}, "out of order"), ConnectionError, "it answers 500 (out of order), tried 3 times", 3),
    "error page": (lambda s, p, r: (503, {}, "<style>p{white-space:nowrap}</style>"), ConnectionError, "it answers 503", 3),
    "full disk": (lambda s, p, r: (500, {}, "No space left on device"), OSError, "is full", 1),
    "redirect": (lambda s, p, r: (307, {"Location": "https://other.org/"}, ""), ConnectionError, "names 'https://other.org/'; give that address", 1),
    "HTML": (lambda s, p, r: (200, {"Content-Type": "text/html"}, "<html>Welcome</html>"), ConnectionError, "answers, but not as Qdrant does", 1),
    "no result": (changed(lambda r: None), ConnectionError, "answers, but not as Qdrant does", 1),
    "schema of another version": (changed(lambda r: [{"hits": []}]), ConnectionError, "answers, but not as Qdrant does", 1),
    "null scores": (each_point(score=None), ConnectionError, "answers, but not as Qdrant does", 1),
    "missing payload": (each_point(payload=None), ValueError, "has no name of an image", 1),
    "missing vectors": (each_point(vector=None), ValueError, "does not match its checksum", 1),
    "short batch": (changed(lambda r: []), ConnectionError, "answers, but not as Qdrant does", 1),
}


@pytest.mark.parametrize("fault, error, sentence, tries", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_one_sentence(server, fault, error, sentence, tries):
    index = Index(None, server.url)
    server.fault = lambda path, result: fault(server, path, result) if path.endswith("query/batch") else None
    with pytest.raises(error) as caught:
        index.search(sentences()[0])
    text = str(caught.value)
    assert sentence in text and server.url in text and ";" in text and "\n" not in text
    assert [path.endswith("query/batch") for path in server.paths].count(True) == tries
    server.fault = None
    assert len(index.search(sentences()[0]).ids) == 10  # the index is as it was


def test_a_layout_that_cannot_be_read_again_stays(server):
    index = Index(None, server.url)
    server.fault = lambda path, result: (500, {}, "out of order") if path.endswith("exists") else None
    for add in (lambda: index.add(images(5)), lambda: index.search(sentences()[0], where={"typo": "x"})):
        with pytest.raises(ConnectionError, match="it answers 500"):
            add()
    server.fault = None
    assert len(index) == 300 and len(index.search(sentences()[0]).ids) == 10


def test_a_busy_server_is_asked_again_when_it_says(server):
    index = Index(None, server.url)
    times = []

    def busy(path, result):
        times.append(time.monotonic())
        if len(times) == 1:
            return 429, {"Retry-After": "1"}, ok(None)

    server.fault = busy
    assert index.backend.count() == 300 and .9 < times[1] - times[0] < 5


def test_a_page_that_is_no_qdrant_is_refused_when_an_index_is_opened(server):
    server.fault = lambda path, result: (200, {}, "<html>Welcome</html>")
    with pytest.raises(ConnectionError, match="not as Qdrant does"):
        Index(None, server.url)


def test_a_scroll_that_does_not_end(server):
    index = Index(None, server.url)
    first = server.result("/collections/images/points/scroll", {"limit": 10, "with_vector": ["regions", "first"]})
    server.fault = lambda path, result: (200, {}, ok(first)) if path.endswith("scroll") else None
    with pytest.raises(ConnectionError, match="answers the same page again"):
        index.verify()


def test_a_description_of_another_program(server):
    def other(path, result):
        if path.endswith("images.about/points"):
            return 200, {}, ok([point | {"payload": {"layout": {"dim": "many"}}} for point in result])

    server.fault = other
    with pytest.raises(ValueError, match="has no layout of an index .*copy the index again"):
        Index(None, server.url)


def test_a_server_that_arranges_for_ever(server):
    index = Index(None, server.url)
    server.fault = lambda path, result: (200, {}, ok(result | {"status": "yellow"})) if path == "/collections/images" else None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        index.backend.arrange()
    assert server.url in str(caught[-1].message) and "still arranges its images" in str(caught[-1].message)
    assert torch.isfinite(torch.tensor(index.search(sentences()[0]).scores)).all()
