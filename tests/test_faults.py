"Input that fits nowhere ends in one sentence, and every reader of files is in a campaign."
import ast
import sys

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
    "batches of nothing": lambda: split_into_batches([], 2),
    "batches of no image": lambda: split_into_batches([0, 1], 0),
    "batches of no caption": lambda: split_into_batches([0, 1], 2, 0),
    "batches of fractions": lambda: split_into_batches([0.5, 1], 2),
}


@pytest.mark.parametrize("name", CASES)
def test_one_sentence(name):
    with pytest.raises(ValueError) as raised:
        CASES[name]()
    assert "\n" not in str(raised.value)


OPENS = {"open", "read_text", "read_bytes", "read_json", "read_json_lines", "open_plain", "load", "loads", "memmap", "load_file", "safe_open", "load_tensors", "open_packed", "ZipFile", "File",
         "fromfile", "from_pretrained", "load_from_hub", "load_whole_model", "get_image_processor_dict", "get_processor_dict"}
OWNERS = {"open": {"Image", "lmdb", "builtins"}, "load": {"np", "torch", "EdgeShard"}, "loads": {"json", "pickle"}}
READ_BY = {  # what opens files in a module, and the readers of tests/campaigns/mutate.py that damage these files
    "core.files": ("open_plain read_bytes read_text read_json read_json_lines", "captions, pairs: winoground"),
    "core.hub": ("require_model_folder load_whole_model require_rows", "vision, dual, text"),
    "core.stores": ("Store StoreWriter _continue array load_tensors require_archive open_packed", "feature store, unfinished store, tensors, packed sets, original"),
    "data.caption_files": ("_read_object _text_lines _xml read_entities read_captions", "captions"),
    "data.collection": ("_find_pictures", "collection"),
    "data.convert": ("read_sizes read_class_names", "sizes, class names"),
    "photos.duplicates": ("_read_hashes", "pictures: same"),
    "data.feature_tables": ("table_lines vinvl_tables _KeyedTable _decode_vinvl_row", "features"),
    "data.formats": ("_load _read_ids lmdb_rows hdf5_rows", "features"),
    "measure.pairs": ("read_sugarcrepe read_aro read_winoground read_pairs", "pairs"),
    "data.pictures": ("read_picture", "pictures"),
    "data.provenance": ("open_provenance _open_subspace", "provenance"),
    "measure.spice": ("read_tuples _text_in_jar", "relevance: tuples, relevance: jars"),
    "data.stopwords": ("stop_words", "stop-words"),
    "training.learner": ("_read_checkpoint", "run: checkpoint"),
    "measure.results": ("read_result", "results"),
    "training.recipe": ("_read", "recipe"),
    "measure.relevance": ("_cached _computed_once _memory_map", "relevance"),
    "training.runs": ("saved history commit load_model _train_folder", "run: recipe, run: log, run: environment, dual"),
    "look.website": ("_previous_files", "website"),
    "model.encoding_cache": ("_open_encoded", "encoded images"),
    "model.saving": ("_saved_config load generate_model_card", "model"),
    "model.text": ("_architecture _pretrained_encoder load_text", "text, model: settings"),
    "photos.prepare": ("_open_prepared prepare _make", "prepare"),
    "photos.fine_tuning": ("load_backbone", "vision"),
    "photos.vision": ("load_vision_part image_processor_settings load_pretrained", "vision, detector"),
    "photos.visual_words": ("load", "visual words"),
    "zoo.opening": ("_config _image_processor _tokenizer _prompt_processor family_of pretrained_name", "dual"),
    "zoo.originals": ("open_checkpoint _text_encoder _text_model", "original, uniter"),
    "zoo.uniter": ("_embeddings", "uniter"),
    "search.qdrant": ("EdgeBackend begin _open", "search index"),
}
IN_NONE = {  # and why
    "core.processes:_processor_name": "the machine's own description",
    "core.files:digest": "bytes of any file",
    "core.hub:hub_config": "a file of the hub's client, compared with a shape",
    "core.show:source": "a template of this package",
    "core.processes:_work": "a job of this process",
    "data.hf_datasets:_encoded_picture": "rows of a data set in memory",
    "data.convert:write_table": "it writes",
    "measure.spice:_run_program": "what a program has just printed, compared with a shape",
    "training.compare:_test_once": "files of `run: metrics`, compared with a shape",
    "measure.grounding:PhraseGrounding": "it adds to results that are objects",
    "training.learner:write_checkpoint": "it writes",
    "model.saving:_from_pretrained": "the hub's client",
    "photos.prepare:_state": "a text of this process",
    "photos.prepare:_picture_sizes": "any error leaves the picture out",
    "photos.extractor_lookup:training_features": "the configuration that `run: recipe` damages, compared with shapes",
    "photos.visual_words:_read_shrunk": "any error leaves the picture out",
    "zoo.papers:paper_table": "a table of this package",
    "zoo.originals:_holds_text": "a folder that cannot be read counts as another text model, and is not overwritten",
    "zoo.papers:_index": "a table of this package",
    "zoo.uniter:uniter_config": "the same file as `model: settings`",
    "zoo.dual:save_pretrained": "it writes, with the tokenizer of a folder that was compared when it was opened",
}


def opening():
    "`module:function` of every place that opens a file to read it; of classes and inner functions, the outermost name."
    places = set()
    for path in (ROOT / "teran_nb").rglob("*.py"):
        module = ".".join(path.relative_to(ROOT / "teran_nb").with_suffix("").parts)
        for outer in ast.parse(path.read_text(encoding="utf8")).body:
            for node in ast.walk(outer) if isinstance(outer, (ast.FunctionDef, ast.ClassDef)) else ():
                if not isinstance(node, ast.Call):
                    continue
                method = isinstance(node.func, ast.Attribute)
                name = node.func.attr if method else getattr(node.func, "id", "")
                owner = getattr(node.func.value, "attr", getattr(node.func.value, "id", "")) if method else "builtins"
                if name in OPENS and owner in OWNERS.get(name, {owner}):
                    places.add(f"{module}:{outer.name}")
    return places


def test_every_reader_is_in_a_campaign():
    sys.path.insert(0, str(ROOT / "tests/campaigns"))
    try:
        from readers import READERS
    finally:
        sys.path.pop(0)
    named = [f"{module}:{function}" for module, (functions, _) in READ_BY.items() for function in functions.split()]
    unknown = opening() - set(named) - IN_NONE.keys()
    assert not unknown, f"in no campaign: {sorted(unknown)}; add a reader to tests/campaigns/readers.py, or say here why none is needed"
    for module, (_, readers) in READ_BY.items():
        for reader in readers.split(", "):
            assert any(r.name.startswith(reader) for r in READERS), f"{module} names {reader}, which tests/campaigns/readers.py does not have"
