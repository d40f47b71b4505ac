"""What a user plugs in, a pooling, an encoder, a loss, a metric or a head, works everywhere without touching another file."""
import json
import subprocess
import sys
import warnings
from dataclasses import replace

import matplotlib
import nbformat
import pytest
import torch

from conftest import ROOT, papermill, toy_result
from teran_nb.core.processes import seed_everything
from teran_nb.core.config import PART_KINDS, check, register
from teran_nb.measure.evaluation import evaluate
from teran_nb.training.learner import Learner
from teran_nb.measure.results import METRICS, Result
from teran_nb.measure.retrieval import Protocol, ranks
from lab.entries import compare_with_table, enter, read_table
from lab.registry import fill_document
from teran_nb.training.recipe import TrainConfig
from teran_nb.training.runs import load_model
from teran_nb.look.explorer import Explorer
from teran_nb.look.finder import Finder
from teran_nb.look.galleries import show_gallery, show_sentences
from teran_nb.look.show import show_alignment, show_grounding, show_receipt
from teran_nb.look.website import write_site
from teran_nb.look.view import view
from teran_nb.data.collection import toy_regions
from teran_nb.model.alignment import POOLINGS
from teran_nb.model.heads import HEADS, CrossEncoderHead, Head
from teran_nb.model.losses import LOSSES
from teran_nb.model.network import Network, small_network
from teran_nb.search.index import Index, ask

matplotlib.use("Agg")


def network_for(drawn, **fields):
    return replace(small_network(32, drawn.features.dim), **fields)


def look_at(model, collection, folder):
    "Every way to look at a model."
    result = evaluate(model, collection)
    assert result.sim.shape == (len(collection), len(collection.captions))
    assert result.grounding is not None
    for draw in (show_gallery, show_sentences):
        assert len(draw(collection, result.sim, [0, 1], k=2, model=model)) == 4
    assert len(show_gallery(collection, ask(model, collection, "a red kite"), k=2, model=model)) == 2
    image, text = collection[0], collection.captions.texts[0]
    alignment = model.align(image, text)
    show_grounding(alignment)
    show_alignment(alignment)
    show_receipt(alignment, model.align(collection[1], text))
    page = view(model.align(image, text)).html()
    assert text in page and f'"{alignment.words[-1]}"' in page
    finder = Finder(model, collection, split="all").ask("a red kite above a house")
    assert len(finder.page_items("model")) == 12
    assert finder.ask_by_picture(0).page_items("model")[0] == int(result.sim[0].argmax())
    explorer = Explorer(Finder(model, collection, split="all"), output=folder / "explorer")
    explorer.click(0)
    assert "answered in" in explorer.status.value
    assert "srcdoc" in explorer.view.value
    write_site(folder / "site", collection, result, max_queries=4)
    assert "scene-0" in (folder / "site" / "index.html").read_text(encoding="utf8")
    index = Index(model, folder / "index")
    index.add(collection)
    captions = model.encode_captions(collection)
    assert torch.allclose(ask(model, index, captions, 0).matrix(collection.image_ids), result.sim, atol=1e-2)
    return result


def test_an_encoder_of_twenty_lines(drawn, tmp_path):
    "The cells of the page, in a process that has nothing else; the features are a read-only file."
    copied = {"__name__": "__main__"}
    exec(own_cell("encoder"), copied)
    toy = copied["Toy"]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check("encoder", toy, [drawn[i] for i in range(4)], drawn.captions.texts[:6])
    look_at(toy, drawn, tmp_path)


def test_a_pooling_of_one_cell(drawn, tmp_path):
    @register("pooling", "smooth", "smooth maximum")
    def smooth(align, region_mask, word_mask):
        real = align.masked_fill(~region_mask[:, None, :, None], -torch.inf)
        return ((8 * real).logsumexp(-2) / 8).masked_fill(~word_mask, 0).sum(-1)

    try:
        config = network_for(drawn, pooling="smooth")
        seed_everything(0)
        model = Network.build(config, drawn.captions.texts)
        history = Learner(model, drawn, drawn, TrainConfig(epochs=2, batch_size=8, captions_per_image=2, learning_rate=3e-3), tmp_path / "run", device="cpu").fit()
        assert history.epochs[1]["loss"] < history.epochs[0]["loss"]
        model = Network.load(tmp_path / "run")
        result = look_at(model, drawn, tmp_path)
        i, c = model.encode_images(drawn), model.encode_captions(drawn)
        (r, region_mask), (w, word_mask) = i.parts.padded(), c.parts.padded()
        dense = smooth(torch.einsum("ird,cwd->icrw", r, w), region_mask, word_mask)
        assert torch.allclose(result.sim, dense, atol=1e-4)
        alignment = model.align(drawn[0], drawn.captions.texts[0])
        ax = show_receipt(alignment, model.align(drawn[1], drawn.captions.texts[0]))
        assert "smooth maximum" in ax.get_xlabel()
        rest = alignment.score() - float(alignment.shares().sum())
        regions, pieces = alignment.scored.shape
        empty = float(smooth(torch.zeros(1, 1, regions, pieces), torch.ones(1, regions).bool(), torch.ones(1, pieces).bool()))
        assert abs(rest - empty) < 1e-2
    finally:
        del POOLINGS["smooth"]



def test_a_head_of_one_cell(drawn, tmp_path):
    "Trains, is kept and loaded, ranks; a process without the cell is told what to do."
    class Means(Head):
        ranks_by = "the means of both sides"

        def __init__(self, dim):
            super().__init__(dim)
            self.project = torch.nn.Linear(dim, dim)

        def similarity(self, images, captions, **how):
            means = [(x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1) for x, mask in (images.parts.padded(), captions.parts.padded())]
            return (self.project(means[0]) @ means[1].T).float()

    class Crossed(CrossEncoderHead):
        def __init__(self, dim):
            super().__init__(dim)
            self.scale = torch.nn.Parameter(torch.ones(dim))

        def forward(self, regions, region_mask, words, word_mask):
            return POOLINGS["mrsw"](torch.einsum("ird,cwd->icrw", regions * self.scale, words), region_mask, word_mask)

        def floats_per_pair(self, n_regions, n_words):
            return 2 * n_regions * n_words

    train = TrainConfig(epochs=1, batch_size=8, captions_per_image=2, learning_rate=3e-3)
    for name, kind in (("means", Means), ("crossed", Crossed)):
        register("head", name)(kind)
        try:
            model = Network.build(network_for(drawn, training_heads=(name,), ranking_head=name), drawn.captions.texts)
            Learner(model, drawn, drawn, train, tmp_path / name, device="cpu").fit()
            loaded = load_model(tmp_path / name)
            assert loaded.info.ranks_by == kind.ranks_by and loaded.info.is_cross_encoder == (kind is Crossed)
            sim = evaluate(loaded, drawn).sim
            with torch.no_grad():
                assert torch.allclose(sim, model.eval().similarity(model.encode_images(drawn), model.encode_captions(drawn)), atol=1e-4)
            assert kind.ranks_by in loaded.info.not_indexed  # an index refuses it in these words
        finally:
            del HEADS[name]
    with pytest.raises(ValueError, match="if it is your own, run the cell that defines it first"):
        load_model(tmp_path / "means")


def test_a_loss_is_resumed(drawn, tmp_path):
    "What a loss learns goes on from where it stood."
    @register("loss", "softened", learned={"warmth": 2., "scale": 5.})
    def softened(sim, image_of, warmth, scale):
        return torch.nn.functional.cross_entropy(scale * sim.T, image_of) + (warmth - 1)**2

    try:
        config = TrainConfig(epochs=2, batch_size=8, captions_per_image=2, learning_rate=3e-3, loss="softened")
        whole, halves = [], []
        for folder, epochs in (("whole", (2,)), ("halves", (1, 2))):
            for n in epochs:
                seed_everything(0)
                model = Network.build(network_for(drawn), drawn.captions.texts)
                Learner(model, drawn, drawn, replace(config, epochs=n), tmp_path / folder, device="cpu").fit()
            state = torch.load(tmp_path / folder / "last.pt", weights_only=True)["objective"]
            (whole if folder == "whole" else halves).append({k: v for k, v in state.items() if k in ("criterion.parameter_of.scale", "criterion.parameter_of.warmth")})
        assert whole == halves and len(whole[0]) == 2
        assert whole[0]["criterion.parameter_of.warmth"].item() != 2.
    finally:
        del LOSSES["softened"]


OWN = {  # page, lines of the cells that a reader copies from it
    "pooling": ("model/00_alignment", '@register("pooling", "smooth"'),
    "loss": ("model/01_losses", "from teran_nb import check, register", '@register("loss", "wrong-images")'),
    "encoder": ("model/04_encoder", "import Encoder, EncoderInfo", "class Toy(Encoder)"),
    "head": ("model/05_heads", "from teran_nb import check, register", '@register("head", "words-on-image")', '@register("head", "product")'),
}


def own_cell(kind):
    "The cells of a pooling, loss, encoder or head of one's own, as the pages have them, with the import that alignment names in its text."
    page, *lines = OWN[kind]
    cells = nbformat.read(ROOT / f"nbs/{page}.ipynb", as_version=4).cells
    copied = ["from teran_nb import register"] if kind == "pooling" else []
    copied += [next(c.source for c in cells if c.cell_type == "code" and line in c.source) for line in lines]
    return "\n\n".join(copied)


def test_the_cells_of_the_pages_need_nothing_else():
    try:
        for kind in OWN:
            exec(own_cell(kind), {"__name__": "__main__"})
        check("pooling", "smooth")
        check("loss", "wrong-images")
        for name in ("words-on-image", "product"):
            check("head", name)
    finally:
        for registered, name in ((POOLINGS, "smooth"), (LOSSES, "wrong-images"), (HEADS, "words-on-image"), (HEADS, "product")):
            registered.pop(name, None)


TAKEN = """
from teran_nb import register
try: register("{kind}", "{name}")(object)
except ValueError as e: print(e)
"""


@pytest.mark.parametrize("kind, name", [
    ("pooling", "filip"), ("loss", "sigmoid"), ("head", "joint"), ("metric", "r1"), ("extractor", "windows"), ("format", "npz"), ("family", "clip"), ("change", "colour")])
def test_the_names_of_the_library_are_taken(kind, name):
    "Also in a process that has not imported the page that registers them."
    code = TAKEN.format(kind=kind, name=name)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert f"the {kind} '{name}' exists already; choose another name" in done.stdout, done.stderr


def test_the_parts_of_the_library_pass():
    for kind, entries in (("pooling", POOLINGS), ("loss", LOSSES)):
        for name in entries:
            check(kind, name)
    for name in HEADS:
        check("head", name, small_network(32, features=12))
    for head in ("alignment", "global", "joint"):
        network = Network.build(replace(small_network(32, features=12), training_heads=(head,), ranking_head=head), ["a red kite", "two cats"])
        check("encoder", network, toy_regions(), ["a red kite", "two cats and a red kite"])
    assert {"pooling", "loss", "head", "encoder", "metric"} == {kind for kind in PART_KINDS if PART_KINDS[kind][3]}


@pytest.mark.slow
@pytest.mark.parametrize("kind, name, parameters", [
    ("loss", "wrong-images", {"loss": "wrong-images"}),
    ("head", "product", {"options": {"ranker": "product"}}),
])
def test_a_cell_in_a_workflow(kind, name, parameters, tmp_path):
    "The cells of a page above the parameters of a copy of train, as the page says."
    book = nbformat.read(ROOT / "nbs/train.ipynb", as_version=4)
    place = next(k for k, c in enumerate(book.cells) if "parameters" in c.metadata.get("tags", []))
    book.cells.insert(place, nbformat.v4.new_code_cell(own_cell(kind)))
    nbformat.write(book, tmp_path / "my-train.ipynb")
    done = papermill(tmp_path / "my-train", tmp_path / "out.ipynb", output=str(tmp_path / "runs"), scale="tiny", epochs=1, name="mine", **parameters)
    assert name in json.dumps(done)
    config = json.loads((tmp_path / "runs/mine/run.json").read_text(encoding="utf8"))["recipe"]
    trained_with = config["train"]["loss"] if kind == "loss" else config["network"]["ranking_head"]
    assert trained_with == name


def test_a_metric_of_one_cell(drawn, tmp_path):
    @register("metric", "first", "first quarter")
    def first_quarter(sim, image_of):
        r = ranks(sim, image_of)
        return {"t2i": (r["t2i"] < len(sim) / 4).mean(), "i2t": torch.tensor(r["i2t"] < len(sim) / 4).float().mean()}

    copied = {"__name__": "__main__"}
    exec(own_cell("encoder"), copied)
    try:
        result = evaluate(copied["Toy"](), drawn, Protocol("halves", 2), about={"model": "toy"})
        assert "first quarter %" in result._repr_markdown_()
        both = evaluate([copied["Toy"](), copied["Toy"]()], drawn, Protocol("halves", 2))
        assert both.metrics["t2i_first"] == result.metrics["t2i_first"]
        assert "t2i first quarter %" in (result | both).table()
        seeds = toy_result(.1, .2).lines["teran-mrsw"]
        seeds = [replace(r, metrics=r.metrics | {"t2i_first": .5 + r.metrics["t2i_r1"]}, about=r.about | {"data": "abc"}) for r in seeds]
        enter(Result.of(*seeds), tmp_path / "registry", "train")
        read = read_table(tmp_path / "registry")
        assert read.table()["t2i first quarter %"].tolist() == ["65.0 ± 7.1"]
        assert set(compare_with_table(read, tmp_path / "registry").metric) >= {"t2i_first", "t2i_r1"}
        text = fill_document("<!-- results: table registry metrics=t2i_first -->\n<!-- end -->", tmp_path)
    finally:
        del METRICS["first"]
    assert "65.0 ± 7.1" in text
    assert "first quarter" not in read._repr_markdown_()  # in a process that does not know it, shown only by its name
    assert read.table(["t2i_first"])["t2i_first"].tolist() == ["0.65 ± 0.0707107"]
