"""What a user plugs in, a pooling or an encoder, works everywhere without touching another file."""
import re
from zlib import crc32

import matplotlib
import torch
import torch.nn.functional as F

from teran_nb.core.config import seed_everything
from teran_nb.core.packed import Packed
from teran_nb.experiment.evaluation import evaluate
from teran_nb.experiment.learner import TrainConfig, fit
from teran_nb.look.explore import Explorer
from teran_nb.look.finder import Finder
from teran_nb.look.galleries import ask, show_answers, show_gallery, show_sentences
from teran_nb.look.receipts import show_receipt
from teran_nb.look.show import show_grounding, show_heatmap
from teran_nb.look.website import write_site
from teran_nb.look.view import view
from teran_nb.model.alignment import POOLINGS, pooling
from teran_nb.model.encoder import Encoded, Encoder, region_sets, sentences
from teran_nb.model.network import NetworkConfig
from teran_nb.model.matcher import Matcher, make_matcher
from teran_nb.model.pair import CaptionWords
from teran_nb.model.regions import RegionConfig, StackConfig
from teran_nb.model.text import TextConfig
from teran_nb.search.index import index_images, similarity_of

matplotlib.use("Agg")


class Toy(Encoder):
    "No network: a fixed random projection of the regions, a fixed random vector for each word."
    name, fingerprint = "toy", "toy-0"

    def encode_images(self, images, batch=128, show=False):
        images = region_sets(images)
        project = torch.randn(images[0].features.shape[1], 16, generator=torch.Generator().manual_seed(0))
        parts = Packed.from_sets([F.normalize(torch.tensor(r.features).float() @ project, dim=-1) for r in images])
        return Encoded(torch.zeros(len(images), 16), parts, images.names)

    def encode_captions(self, captions, batch=512, show=False):
        texts, sets, words = sentences(captions), [], []
        for text in texts:
            spans = [m.span() for m in re.finditer(r"\w+", text)]
            words.append(CaptionWords([text[a:b] for a, b in spans], spans, list(range(len(spans)))))
            vectors = [torch.randn(16, generator=torch.Generator().manual_seed(crc32(w.encode()))) for w in words[-1].texts]
            sets.append(F.normalize(torch.stack(vectors), dim=-1) if vectors else torch.zeros(0, 16))
        return Encoded(torch.zeros(len(texts), 16), Packed.from_sets(sets), texts, words)


def look_at(model, collection, folder):
    "Every way to look at a model."
    result = evaluate(model, collection)
    assert result.sim.shape == (len(collection), len(collection.captions))
    assert result.grounding is not None
    for draw in (show_gallery, show_sentences):
        assert len(draw(collection, result.sim, [0, 1], k=2, model=model)) == 4
    assert len(show_answers(collection, ask(model, collection, "a red kite"), 2, model)) == 2
    image, text = collection[0], collection.captions.texts[0]
    alignment = model.align(image, text)
    show_grounding(alignment)
    show_heatmap(alignment)
    show_receipt(alignment, model.align(collection[1], text))
    page = view(model, image, text).html()
    assert text in page and f'"{alignment.words[-1]}"' in page
    finder = Finder(model, collection, split="all").ask("a red kite above a house")
    assert len(finder.page_items("model")) == 12
    assert finder.ask_by_picture(0).page_items("model")[0].item == int(result.sim[0].argmax())
    explorer = Explorer(model, collection, split="all", output=folder / "explorer")
    explorer.click(0)
    assert "answered in" in explorer.status.value
    assert "srcdoc" in explorer.results.view.value
    write_site(folder / "site", model, collection, result, queries=4)
    assert "scene-0" in (folder / "site" / "index.html").read_text(encoding="utf8")
    index = index_images(model, collection, folder / "index")
    captions = model.encode_captions(collection)
    assert torch.allclose(similarity_of(model, index, captions), result.sim, atol=1e-2)
    return result


def test_an_encoder_of_twenty_lines(drawn, tmp_path):
    look_at(Toy(), drawn, tmp_path)


def test_a_pooling_of_one_cell(drawn, tmp_path):
    @pooling("smooth", "smooth maximum")
    def smooth(align, region_mask, word_mask):
        real = align.masked_fill(~region_mask[:, None, :, None], -torch.inf)
        return ((8 * real).logsumexp(-2) / 8).masked_fill(~word_mask, 0).sum(-1)

    try:
        stack = StackConfig(1, 4, 32)
        config = NetworkConfig(text=TextConfig(dim=16, heads=4, feed_forward=32, layers=1), dim=16, last=stack, pooling="smooth",
                               regions=RegionConfig(drawn.features.dim, 32, stack))
        seed_everything(0)
        model = make_matcher(config, drawn.captions.texts)
        history = fit(model, drawn, drawn, TrainConfig(epochs=2, images=8, captions=2, rate=3e-3), tmp_path / "run", device="cpu")
        assert history.epochs[1]["loss"] < history.epochs[0]["loss"]
        model = Matcher.load(tmp_path / "run")
        result = look_at(model, drawn, tmp_path)
        i, c = model.encode_images(drawn), model.encode_captions(drawn)
        (r, region_mask), (w, word_mask) = i.parts.padded(), c.parts.padded()
        dense = smooth(torch.einsum("ird,cwd->icrw", r, w), region_mask, word_mask)
        assert torch.allclose(result.sim, dense, atol=1e-4)
        alignment = model.align(drawn[0], drawn.captions.texts[0])
        ax = show_receipt(alignment, model.align(drawn[1], drawn.captions.texts[0]))
        assert "smooth maximum" in ax.get_xlabel()
        rest = alignment.score() - float(alignment.shares().sum())
        empty = float(smooth(torch.zeros(1, 1, *alignment.pieces.shape), torch.ones(1, len(alignment.pieces)).bool(),
                             torch.ones(1, alignment.pieces.shape[1]).bool()))
        assert abs(rest - empty) < 1e-2
    finally:
        del POOLINGS["smooth"]
