"Small files of every kind, their readers, and what must hold of what was read, whatever the file was."
import gzip
import json
import shutil
import tempfile
import weakref
import zipfile
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from common import ROOT
from models import (
    is_finite, make_detector, make_dual, make_learning, make_prepared, make_preparing, make_text, make_uniter, make_vision, prepared_holds,
    read_detector, read_dual, read_learning, read_prepared, read_text_model, read_uniter, read_vision)
from PIL import Image

from lab.entries import read_measured, read_table
from teran_nb.core.config import to_config
from teran_nb.core.processes import seed_everything
from teran_nb.core.files import digest, load_tensors, read_json, save_tensors
from teran_nb.core.packed import Packed
from teran_nb.data.caption_files import read_captions
from teran_nb.data.captions import Captions, Link
from teran_nb.data.collection import Collection
from teran_nb.data.convert import PublishedFeatures, convert, read_class_names, read_sizes
from teran_nb.photos.duplicates import find_duplicates
from teran_nb.data.features import FeatureWriter, Features, Regions
from teran_nb.measure.judgement import read_judgements
from teran_nb.measure.pairs import _benchmark_pairs, read_pairs
from teran_nb.measure.retrieval import coco_judgements
from teran_nb.data.words import read_phrases, stop_words
from teran_nb.data.pictures import read_picture
from teran_nb.data.provenance import open_provenance, provenance, save_provenance
from teran_nb.measure.spice import Tuples, read_synonyms
from teran_nb.training.learner import Learner, read_checkpoint
from teran_nb.training.recipe import Recipe, TrainConfig, recipe
from teran_nb.measure.results import Measured, Result, answered_by_both, read_result
from teran_nb.measure.relevance import read_relevance, rouge_l, spice
from teran_nb.training.runs import Run, _origin
from teran_nb.look.website import _previous_files
from teran_nb.model.encoded import Encoded
from teran_nb.model.saving import load_or_encode
from teran_nb.model.network import Network, NetworkConfig
from teran_nb.model.regions import RegionConfig, StackConfig
from teran_nb.model.text import TextConfig

from teran_nb.zoo.originals import load_original, open_checkpoint, read_original, save_original
from teran_nb.search.index import Index


@dataclass
class Reader:
    "How a kind of file is made and read."
    name: str
    make: object  # of a folder: writes the files
    read: object  # of that folder: what they hold
    holds: object = None  # whether what was read is possible; every reader that is not sealed has one
    sealed: bool = False  # a checksum covers every file: what is read is what was written, or an error
    only: str = "*"  # files that are damaged
    writes: bool = False  # the reader changes the files itself
    threads: bool = False  # it begins threads, so it never runs in a process that forks afterwards

    def __post_init__(self):
        assert bool(self.holds) != self.sealed, f"{self.name} could not be seen to be silent"


def toy_collection(folder, n=24, pictures=True):
    "A collection whose captions name what its features hold."
    rng, names = np.random.default_rng(0), ["kite", "house", "boat", "cat", "dog", "star"]
    texts, image_of, basis, links = [], [], rng.normal(size=(6, 12)), []
    with FeatureWriter(folder / "features", "toy", 12, "float32") as w:
        for i in range(n):
            things = rng.choice(6, 3, replace=False)
            corners = np.sort(rng.uniform(0, 99, (3, 2, 2)), 1).reshape(3, 4) + [0, 0, 1, 1]
            w.add(f"im{i}", basis[things] + 0.1 * rng.normal(size=(3, 12)), corners, (100, 100))
            for k in things[:2]:
                texts.append(f"a {names[k]} and a {names[things[2]]}")
                image_of.append(i)
                links.append((Link(2, 2 + len(names[k]), "noun", ((1.0, 2.0, 30.0, 40.0),)),))
    ids = [f"im{i}" for i in range(n)]
    captions = Captions(texts, image_of, ids, np.full((n, 2), 100.0), ["train", "val", "test"] * (n // 3), links)
    captions.save(folder / "captions.json")
    if pictures:
        (folder / "elsewhere").mkdir()
        for i in ids:
            Image.new("RGB", (20, 20), "orange").save(folder / "elsewhere" / f"{i}.png")
        files = {i: f"{i}.png" for i in ids}
        (folder / "pictures.json").write_text(json.dumps({"folder": str(folder / "elsewhere"), "files": files}))
    return Collection.open(folder)


TINY = NetworkConfig(text=TextConfig(dim=16, heads=4, feed_forward=32, layers=1), dim=8, last=StackConfig(1), regions=RegionConfig(12, stack=StackConfig(1)))


def copied(*names):
    def make(folder):
        for name in names:
            source = ROOT / "data" / name
            if source.is_dir():
                shutil.copytree(source, folder / source.name)
            else:
                shutil.copy(source, folder)
    return make


def captions_hold(c):
    sizes = c.sizes is None or bool((np.isfinite(c.sizes) & (c.sizes > 0)).all())
    texts = all(type(t) is str and t.strip() for t in c.texts) and all(type(k) is str for k in c.image_ids)
    inside = all(0 <= link.start <= link.end <= len(t) for t, links in zip(c.texts, c.links or []) for link in links)
    boxes = all(np.isfinite(b).all() and b[0] <= b[2] and b[1] <= b[3] for links in c.links or [] for link in links for b in link.boxes)
    splits = c.splits is None or all(type(s) is str for s in c.splits)
    return sizes and texts and inside and boxes and splits and len(set(c.image_ids)) == len(c.image_ids)


def captions_reader(file, **options):
    return lambda folder: read_captions(folder / file, **options)


def regions_hold(store):
    for i in range(len(store)):
        r = store[i]
        w, h = r.size or (1, 1)
        if not (len(r) and np.isfinite(r.features).all() and 0 < w < np.inf and 0 < h < np.inf):
            return False
        if r.boxes is not None and not ((r.boxes >= 0) & (r.boxes <= [w, h, w, h])).all():
            return False
        if r.classes is not None and not (r.classes >= 0).all():
            return False
    return True


def converted(path, **options):
    "Convert and open. Rows that say what no file can refute, such as a vector's value, are read as they are."
    def read(folder):
        out = folder.parent / "store"
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(folder.parent / ".store.unfinished", ignore_errors=True)
        convert(PublishedFeatures(folder / path, **{k: v(folder) if callable(v) else v for k, v in options.items()}), out, "toy", show_progress_bar=False)
        return Features(out).verify()
    return read


def all_of(collection):
    "Everything that a collection holds."
    return [(c.regions.features.tobytes(), c.captions, c.path and c.picture().size) for c in map(collection.__getitem__, range(len(collection)))]


def collection_holds(collection):
    return captions_hold(collection.captions) and regions_hold(collection.features) and bool(all_of(collection))


def store_reader(folder):
    store = Features(folder / "features").verify()
    return digest([store.manifest, [store[i].features.tolist() for i in range(len(store))]])


def make_relevance(folder):
    captions = read_captions(ROOT / "data/captions/karpathy.json")
    values = np.random.default_rng(0).random((len(captions), len(captions.image_ids)), np.float32)
    np.save(folder / "numpy.npy", values)
    values.tofile(folder / "raw.bin")


def relevance_reader(name):
    captions = read_captions(ROOT / "data/captions/karpathy.json")
    return lambda folder: read_relevance(folder / name, captions, "toy")


def read_cached(folder):
    import warnings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return digest(rouge_l(read_captions(ROOT / "data/captions/karpathy.json"), folder).values.tolist())


@cache
def original(make):
    "A folder with what `make` writes, made once."
    holder = tempfile.TemporaryDirectory()
    weakref.finalize(make, holder.cleanup)
    folder = Path(holder.name) / "files"
    folder.mkdir()
    make(folder)
    return folder


def made(make, *names):
    "A copy of these files of what `make` writes; of all without names."
    def copy(folder):
        for source in [original(make) / name for name in names] or original(make).iterdir():
            if source.is_dir():
                shutil.copytree(source, folder / source.name)
            else:
                shutil.copy(source, folder / source.name)
    return copy


def make_run(folder):
    world = toy_collection(folder.parent / "toy", pictures=False)
    model = Network.build(TINY, world.captions.texts)
    config = TrainConfig(epochs=1, batch_size=8, captions_per_image=2)
    Learner(model, world, world, config, folder, device="cpu").fit()
    saved = {"recipe": asdict(Recipe(scale="tiny", network=TINY, train=config)), "data": {"data": "toy"}, "sums": {}, "own_code": {}}
    (folder / "run.json").write_text(json.dumps(saved))
    shutil.rmtree(folder.parent / "toy")


def tensors_digest(tensors):
    return digest({k: [str(v.dtype), v.tolist()] for k, v in tensors.items()})


def read_model(folder):
    model = Network.load(folder / "model")
    model.encode_captions(["a kite and a house"])
    return model


def make_model(folder):
    seed_everything(0)
    Network.build(TINY, ["a kite and a house"] * 2).save(folder / "model")


def make_original(folder):
    seed_everything(0)
    text = TextConfig(dim=16, heads=4, feed_forward=32, layers=2)
    model = Network.build(replace(TINY, text=text), ["a kite and a house"] * 2).eval()
    save_original(model, folder / "mine.pth.tar")


def make_unfinished(folder):
    write_some(folder, 300)


def write_some(folder, stop=None):
    try:
        with FeatureWriter(folder / "long", "toy", 4, source_hash="source") as w:
            for i in range(len(w.ids), 320):
                if i == stop:
                    raise KeyboardInterrupt
                w.add(f"im{i}", np.full((1, 4), i % 7), [[0, 0, 1, 1]], (2, 2))
    except KeyboardInterrupt:
        return None
    return digest(Features(folder / "long").verify().manifest)


def make_pictures(folder):
    picture = Image.linear_gradient("L").convert("RGB").resize((64, 48))
    for ending in ("png", "jpg", "gif", "webp", "tiff", "bmp"):
        picture.save(folder / f"a.{ending}")


def read_all_pictures(folder):
    return [read_picture(p, 32)[0] for p in sorted(folder.iterdir())]


def make_phrases(folder):
    rows = ["filename,phrase,x1,y1,x2,y2", *(f"im{i}.jpg,a kite,0.1,0.2,0.{3 + i},0.9" for i in range(5))]
    (folder / "phrases.csv").write_text("\n".join(rows))
    lines = [{"image": f"im{i}", "phrase": "a kite", "x1": 0.1, "y1": 0, "x2": 0.5, "y2": 1} for i in range(5)]
    (folder / "phrases.jsonl").write_text("\n".join(map(json.dumps, lines)))


def read_some_phrases(path):
    captions = Captions([f"a kite {i}" for i in range(5)], range(5), [f"im{i}" for i in range(5)], np.full((5, 2), 100))
    return read_phrases(path, captions)


def packed_digest(packed):
    return digest([packed.values.tolist(), packed.offsets.tolist()])


def make_provenance(folder):
    save_provenance(provenance(Collection.open(original(make_world))), folder)


def provenance_holds(kept):
    if kept is None:  # a model may keep nothing
        return True
    words = all(word and type(n) is int and n > 0 for word, n in kept.words.items())
    return words and type(kept.data) is str and (kept.mean is None or np.isfinite(kept.residual(Regions("", np.zeros((2, 12)), None, None))))


def make_world(folder):
    toy_collection(folder, pictures=False)


@cache
def encoding():
    "A model and a collection."
    return Network.load(original(make_model) / "model"), Collection.open(original(make_world))


def read_encoded(folder):
    model, world = encoding()
    encoded = load_or_encode(model, world, folder)
    return digest([encoded.whole.tolist(), packed_digest(encoded.parts)])


def encoded_batch(first, count=4):
    "Images as an encoder gives them."
    rows = torch.randn(3 * count, 8, generator=torch.Generator().manual_seed(first))
    parts = Packed(torch.nn.functional.normalize(rows, dim=1), list(range(0, 3 * count + 1, 3)))
    return Encoded(torch.zeros(count, 8), parts, [f"im{i}" for i in range(first, first + count)])


def make_index(folder):
    index = Index(None, folder / "index")
    index.add(encoded_batch(0), {"place": ["sea", "town", "sea", "wood"]})
    index.close()


def read_index(folder):
    "What an index holds, and what it answers."
    index = Index(None, folder / "index")
    try:
        index.verify()
        hits = index.search(encoded_batch(0)[0], 3)
        return digest([index.names, packed_digest(index[:].parts), hits.ids, [hit.payload["place"] for hit in hits]])
    finally:
        index.close()


def compressed_captions(folder):
    (folder / "captions.json.gz").write_bytes(gzip.compress((ROOT / "data/captions/karpathy.json").read_bytes(), mtime=0))


def coco_sizes(folder):
    return read_sizes(folder / "sizes.json")


def sizes_hold(sizes):
    return all(type(k) is str and 0 < w < np.inf and 0 < h < np.inf for k, (w, h) in sizes.items())


def make_results(folder):
    measured = {"i2t r@1": 0.5, "t2i ndcg": None, "rank": 3.0}
    Result({"ours": (Measured(measured, {"protocol": "toy", "seed": 0}),)}).save(folder / "results.json")


def measured(folder):
    "What a run reached, as it is read by a table and by a claim."
    results = read_measured([folder])
    line = Measured({"t2i_r1": 0.5}, {"run": str(folder)})
    answered_by_both(line, line, "t2i_r1")
    return results


def make_measured(folder):
    made(make_run, "run.json")(folder)
    measured = {"of": {"data": "toy"}, "metrics": {"t2i_r1": 0.5, "i2t_ndcg": None}, "about": {"model": "teran-mrsw", "protocol": "toy"}}
    (folder / "metrics-teran-mrsw.json").write_text(json.dumps(measured | {"ranks": {"t2i": [0, 3, 1], "i2t": [2, 0]}}))
    (folder / "environment.json").write_text(json.dumps({"seed": 0, "commit": "1234567", "cores": 2}))


def make_registry(folder):
    record = {"seed": 0, "metrics": {"t2i_r1": 0.5, "t2i_median": 3.0}, "epochs": 4, "seconds": 12.5, "commit": "1234567", "versions": {"torch": "2.13"},
              "machine": "cpu", "threads": 1, "data": "0123456789abcdef", "command": "papermill nbs/board.ipynb out.ipynb"}
    entry = {"row": "ours", "conditions": {"protocol": "toy", "candidates": "5 images x 25 captions"}, "records": [record, record | {"seed": 1}]}
    (folder / "ours.json").write_text(json.dumps(entry))


def make_tuples(folder):
    captions = Collection.open(original(make_world)).captions
    parsed = {(text,): [["kite"], ["kite", "orange"], ["kite", "above", "house"]] for text in captions.texts}
    for i in range(len(captions.image_ids)):
        texts = tuple(t for t, k in zip(captions.texts, captions.image_of) if k == i)
        parsed[texts] = [["kite"], ["house"]]
    Tuples(parsed, {"kite": frozenset([1, 2])}).save(folder / "tuples.jsonl")


def read_some_tuples(folder):
    with tempfile.TemporaryDirectory() as cache:
        return spice(Collection.open(original(make_world)).captions, folder / "tuples.jsonl", cache=cache).values.copy()


def make_jar(folder):
    "The files of SPICE's program that are read, in one archive."
    with zipfile.ZipFile(folder / "spice.jar", "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("synonym/english.synsets", "mouse\n1 2\nbus\n3\n")
        z.writestr("synonym/english.exceptions", "mouse\nmice\n")


def read_jar(folder):
    words = read_synonyms(folder / "spice.jar")
    return digest({word: sorted(words(word)) for word in ("mouse", "mice", "car", "cars", "two")})


def make_carded(folder):
    "A model beside the settings and numbers of its run."
    made(make_model)(folder)
    (folder / "config.json").write_text(json.dumps({"about": {"model": "teran", "preset": "tiny"}}))
    (folder / "environment.json").write_text(json.dumps({"seed": 1, "commit": "abc", "torch": "2"}))
    (folder / "metrics.json").write_text(json.dumps({"about": {"protocol": "toy", "candidates": "6"}, "metrics": {"t2i_r1": 0.5, "i2t_median": 2.0}}))


def read_card(folder):
    return Network.load(folder / "model").generate_model_card().content


def make_site(folder):
    (folder / "index.html").write_text("<p>a page</p>")
    (folder / "site.json").write_text(json.dumps({"files": ["index.html", "words.html", "views/s1.html", "thumbs/3.jpg"]}))


def make_same(folder):
    make_pictures(folder)
    toy_collection(folder / "toy", 6)


def read_same(folder):
    "Pictures of a collection that are damaged, or an uploaded one."
    files = {f"im{i}": str(path) for i, path in enumerate(sorted(folder.glob("a.*"))[:6])}
    (folder / "toy/pictures.json").unlink(missing_ok=True)
    (folder / "toy/pictures.json").write_text(json.dumps({"folder": str(folder), "files": {k: Path(v).name for k, v in files.items()}}))
    return find_duplicates(Collection.open(folder / "toy"))


def read_uploaded(folder):
    return [read_picture(path)[0] for path in sorted(folder.iterdir())]


def results_hold(results):
    return all(v is None or np.isfinite(v) for seeds in results.lines.values() for o in seeds for v in o.metrics.values())


def make_pairs(folder):
    row = {"filename": "a.jpg", "caption": "a kite above a house", "negative_caption": "a house above a kite"}
    (folder / "swap.json").write_text(json.dumps({str(i): row for i in range(4)}))
    aro = {"image_path": "a.jpg", "true_caption": "the kite is above the house", "false_caption": "the house is above the kite", "relation_name": "above"}
    (folder / "aro.json").write_text(json.dumps([aro | {"bbox_x": i, "bbox_y": 0, "bbox_w": 9, "bbox_h": 8.5} for i in range(4)]))
    wino = {"image_0": "a", "image_1": "b", "caption_0": "a kite above a house", "caption_1": "a house above a kite", "collapsed_tag": "Object"}
    (folder / "examples.jsonl").write_text("\n".join([json.dumps(wino)] * 4))
    for name in ("a.jpg", "b.jpg"):
        Image.new("RGB", (8, 8)).save(folder / name)


def pairs_hold(pairs):
    texts = all(pair.true_caption.strip() and pair.false_caption.strip() and pair.true_caption != pair.false_caption for pair in pairs)
    return texts and all(pair.box is None or np.isfinite(np.array(pair.box, float)).all() for pair in pairs)


RATED = Captions(["a kite", "a house", "a boat"], [0, 1, 2], ["a", "b", "c"])


def make_ratings(folder):
    (folder / "expert.tsv").write_text("a.jpg\tb.jpg#0\t1\t2\t1\nb.jpg\tb.jpg#0\t4\t4\t3\nc.jpg\ta.jpg#0\t2\t1\t1\n")
    (folder / "mine.csv").write_text("image,sentence,rating\na.jpg,a kite,4\nb.jpg,a boat,1.5\n")
    rows = [{"image": "a.jpg", "sentence": "a kite", "rating": 4, "rating 2": 3}, {"image": "b", "sentence": "a.jpg#0", "rating": 1.5, "rating 2": 2}]
    (folder / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))


def ratings_hold(judgements):
    return bool(np.isfinite(judgements.ratings).all()) and set(judgements.image_ids) <= set(RATED.image_ids) and all(judgements.sentences)


def make_judged(folder):
    own = {str(caption): [11 if caption < 105 else 22] for caption in range(100, 110)}
    np.save(folder / "coco_test_ids.npy", np.arange(100, 110))
    for name, values in {"original_caption_to_image": own, "cxc_caption_to_image": own, "eccv_caption_to_image": {"107": [11, 22]},
                         "cxc_image_to_caption": {"11": [100, 101]}, "eccv_image_to_caption": {"11": [100, 107]}}.items():
        (folder / f"{name}.json").write_text(json.dumps(values))


def judged_hold(judged):
    rows = [row for by in judged.values() for listed in by.values() for rows in listed.values() for row in rows]
    return judged.keys() == {"eccv", "cxc"} and all(-1 <= row < 10 for row in rows)


def names_hold(names):
    return len(names) == len(set(names)) and all(name.strip() == name and name.isprintable() and 0 < len(name) <= 200 for name in names)


READERS = [
    Reader("captions: karpathy", copied("captions/karpathy.json"), captions_reader("karpathy.json"), captions_hold),
    Reader("captions: coco", copied("captions/coco.json"), captions_reader("coco.json"), captions_hold),
    Reader("captions: csv", copied("captions/captions.csv"), captions_reader("captions.csv"), captions_hold),
    Reader("captions: xlsx", copied("captions/captions.xlsx"), captions_reader("captions.xlsx"), captions_hold),
    Reader("captions: jsonl", copied("captions/captions.jsonl"), captions_reader("captions.jsonl"), captions_hold),
    Reader("captions: lines", copied("captions/lines.txt"), captions_reader("lines.txt"), captions_hold),
    Reader("captions: token", copied("captions/flickr.token"), captions_reader("flickr.token"), captions_hold),
    Reader("captions: entities", copied("captions/entities"), captions_reader("entities"), captions_hold),
    Reader("captions: json.gz", compressed_captions, captions_reader("captions.json.gz"), captions_hold),
    Reader("phrases", make_phrases, lambda f: read_some_phrases(f / "phrases.csv"), captions_hold, only="phrases.csv"),
    Reader("phrases: lines", make_phrases, lambda f: read_some_phrases(f / "phrases.jsonl"), captions_hold, only="phrases.jsonl"),
    Reader("sizes: csv", copied("formats/sizes.csv"), lambda f: read_sizes(f / "sizes.csv"), sizes_hold),
    Reader("sizes: json", copied("formats/teran/sizes.json"), coco_sizes, sizes_hold),
    Reader("class names", copied("formats/classes.txt"), lambda f: read_class_names(f / "classes.txt"), names_hold),
    Reader("features: bottom-up", copied("formats/bottom-up"), converted("bottom-up"), regions_hold),
    Reader("features: lxmert", copied("formats/lxmert.tsv"), converted("lxmert.tsv"), regions_hold),
    Reader("features: vinvl", copied("formats/vinvl"), converted("vinvl"), regions_hold),
    Reader("features: oscar", copied("formats/oscar", "formats/sizes.csv"), converted("oscar", sizes=lambda f: f / "sizes.csv"), regions_hold),
    Reader("features: scene-graph", copied("formats/scene-graph", "formats/sizes.csv"), converted("scene-graph", sizes=lambda f: f / "sizes.csv"), regions_hold),
    Reader("features: npz", copied("formats/npz", "formats/sizes.csv"), converted("npz", sizes=lambda f: f / "sizes.csv", pattern=r"0*(\d+)$"), regions_hold),
    Reader("features: teran", copied("formats/teran"), converted("teran", sizes=lambda f: f / "teran/sizes.json"), regions_hold),
    Reader("features: scan", copied("formats/scan"), converted("scan"), regions_hold),
    Reader("features: lmdb", copied("formats/uniter", "formats/sizes.csv"), converted("uniter", sizes=lambda f: f / "sizes.csv", pattern=r"0*(\d+)$"), regions_hold),
    Reader("features: hdf5 arrays", copied("formats/arrays.h5", "formats/sizes.csv"), converted("arrays.h5", sizes=lambda f: f / "sizes.csv"), regions_hold),
    Reader("features: hdf5 groups", copied("formats/groups.h5", "formats/sizes.csv"), converted("groups.h5", sizes=lambda f: f / "sizes.csv"), regions_hold),
    Reader("feature store", lambda f: toy_collection(f, 6, False), store_reader, sealed=True, only="features/*"),
    Reader("collection", lambda f: toy_collection(f, 6), lambda f: Collection.open(f), collection_holds, only="*.json"),
    Reader("unfinished store", make_unfinished, write_some, sealed=True, writes=True),
    Reader("encoded images", read_encoded, read_encoded, sealed=True, writes=True),
    Reader("search index", make_index, read_index, sealed=True, writes=True, threads=True, only="index/*.*"),
    Reader("search index: vectors", make_index, read_index, sealed=True, writes=True, threads=True, only="index/shard/**/vector_storage-regions/vectors/chunk_0.mmap"),
    Reader("tensors", lambda f: save_tensors({"map": torch.arange(6.0), "n": torch.tensor(3)}, f / "w.safetensors"),
           lambda f: tensors_digest(load_tensors(f / "w.safetensors")), sealed=True),
    Reader("provenance: table", made(make_provenance), open_provenance, provenance_holds, only="provenance.json"),
    Reader("provenance: features", made(make_provenance), lambda f: digest([getattr(open_provenance(f), k).tolist() for k in ("mean", "std", "directions")]), sealed=True,
           only="provenance.safetensors"),
    Reader("relevance: numpy", made(make_relevance), relevance_reader("numpy.npy"), lambda r: bool(((r.values >= 0) & (r.values <= 1)).all()), only="numpy.npy"),
    Reader("relevance: raw", made(make_relevance), relevance_reader("raw.bin"), lambda r: bool(((r.values >= 0) & (r.values <= 1)).all()), only="raw.bin"),
    Reader("relevance: cache", read_cached, read_cached, sealed=True, writes=True),
    Reader("relevance: tuples", made(make_tuples), read_some_tuples, lambda v: bool(((v >= 0) & (v <= 1)).all()), only="tuples.jsonl"),
    Reader("relevance: jars", make_jar, read_jar, sealed=True),
    Reader("pictures: same", make_same, read_same, lambda s: s.images <= 6, only="a.*", writes=True),
    Reader("pictures: uploaded", make_pictures, read_uploaded, lambda ps: all(p.mode == "RGB" for p in ps)),
    Reader("pictures", make_pictures, read_all_pictures, lambda ps: all(p.mode == "RGB" and max(p.size) <= 32 for p in ps)),
    Reader("recipe", lambda f: (f / "a.yaml").write_text("base: teran-mrsw # ours\nlearning_rate: 5e-4\ntext.layers: 2\n"),
           lambda f: recipe(str(f / "a.yaml"), "tiny"), lambda r: r.network.dim > 0, only="a.yaml"),
    Reader("run: recipe", made(make_run, "run.json"), lambda f: Run(f).recipe, lambda r: r.network.dim > 0, only="run.json"),
    Reader("run: log", made(make_run, "log.jsonl", "run.json"), lambda f: Run(f).history, lambda h: all(np.isfinite(e[h.select]) for e in h.epochs), only="log.jsonl"),
    Reader("run: metrics", make_measured, measured, results_hold, only="metrics-*.json"),
    Reader("run: environment", make_measured, lambda f: _origin(f / "model"), lambda o: type(o["seed"]) in (int, str) and type(o["commit"]) is str, only="environment.json"),
    Reader("registry", make_registry, lambda f: read_table(f), results_hold),
    Reader("run: checkpoint", made(make_run, "last.pt"), lambda f: tensors_digest(read_checkpoint(f)["objective"]), sealed=True, only="last.pt"),
    Reader("model: weights", made(make_model), lambda f: tensors_digest(read_model(f).state_dict()), sealed=True, only="model/model.safetensors"),
    Reader("model: settings", made(make_model), read_model, lambda m: bool(all(p.isfinite().all() for p in m.parameters())), only="model/**/*.json"),
    Reader("model: card", make_carded, read_card, lambda text: "<script" not in text, only="*.json"),
    Reader("original: weights", made(make_original), lambda f: tensors_digest(read_original(f / "mine.pth.tar")["model"]), sealed=True, only="mine.pth.tar"),
    Reader("original: model", made(make_original), lambda f: load_original(f / "mine.pth.tar"), lambda m: bool(all(p.isfinite().all() for p in m.parameters())),
           only="mine.pth.tar"),
    Reader("results", make_results, lambda f: read_result(f / "results.json"), results_hold),
    Reader("pairs: sugarcrepe", made(make_pairs, "swap.json"), lambda f: _benchmark_pairs(f / "swap.json"), pairs_hold),
    Reader("pairs: aro", made(make_pairs, "aro.json"), lambda f: _benchmark_pairs(f / "aro.json"), pairs_hold),
    Reader("pairs: any", made(make_pairs), lambda f: [*read_pairs(f / "aro.json", f).items, *read_pairs(f / "examples.jsonl", f).items], pairs_hold, only="[ae]*.json*"),
    Reader("ratings: flickr8k", make_ratings, lambda f: read_judgements(f / "expert.tsv", RATED)[0], ratings_hold, only="expert.tsv"),
    Reader("ratings: table", make_ratings, lambda f: read_judgements(f / "mine.csv", RATED)[0], ratings_hold, only="mine.csv"),
    Reader("ratings: lines", make_ratings, lambda f: read_judgements(f / "mine.jsonl", RATED)[0], ratings_hold, only="mine.jsonl"),
    Reader("coco judgements", make_judged, lambda f: coco_judgements(f), judged_hold),
    Reader("stop-words", lambda f: (f / "words.txt").write_text("a\nthe\nof"), lambda f: stop_words(str(f / "words.txt")), lambda w: all(type(x) is str and x for x in w)),
    Reader("website", make_site, _previous_files, lambda names: all(".." not in name and not name.startswith("/") for name in names), only="site.json"),
    Reader("pairs: winoground", made(make_pairs, "examples.jsonl"), lambda f: _benchmark_pairs(f / "examples.jsonl"), pairs_hold),
    Reader("configuration", lambda f: (f / "config.json").write_text(json.dumps(asdict(TINY))),
           lambda f: configuration(f / "config.json"), lambda c: 0 < c.dim and 0 <= c.last.layers <= 1000),
    Reader("vision: settings", made(make_vision), read_vision, is_finite, only="vit/*.json"),
    Reader("vision: weights", made(make_vision), read_vision, is_finite, only="vit/*.safetensors"),
    Reader("vision: learning", made(make_learning), read_learning, is_finite),
    Reader("detector", made(make_detector), read_detector, is_finite),
    Reader("dual: settings", made(make_dual), read_dual, is_finite, only="clip/*.json"),
    Reader("dual: weights", made(make_dual), read_dual, is_finite, only="clip/*.safetensors"),
    Reader("text: settings", made(make_text), read_text_model, is_finite, only="bert/*.json"),
    Reader("text: weights", made(make_text), read_text_model, is_finite, only="bert/*.safetensors"),
    Reader("uniter: weights", made(make_uniter), lambda f: tensors_digest(open_checkpoint(f / "uniter.pt")), sealed=True, only="uniter.pt"),
    Reader("uniter: model", made(make_uniter), read_uniter, is_finite),
    Reader("prepare: unfinished", made(make_preparing), read_prepared, prepared_holds, only=".made.preparing/*.json", writes=True),
    Reader("prepare: collection", made(make_prepared), read_prepared, prepared_holds, only="made/collection.json", writes=True),
]


def configuration(path):
    try:
        return to_config(NetworkConfig, read_json(path))
    except ValueError as e:
        raise ValueError(f"{path}: {e}") from None  # readers of configurations name their file
