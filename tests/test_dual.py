"""A pretrained dual encoder goes through the same places as our own models, on drawn scenes with pictures."""
import json
import re

import html5lib
import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image
from conftest import papermill, play
from test_sockets import look_at

from teran_nb.data.collection import Collection
from teran_nb.data.collection import Image as GivenImage
from teran_nb.data.hf_datasets import save_dataset, to_dataset
from teran_nb.training.datasets import load_data
from teran_nb.measure.evaluation import evaluate
from teran_nb.measure.retrieval import retrieval
from teran_nb.training.runs import evaluate_runs, load_model, open_models
from teran_nb.look.finder import Finder
from teran_nb.look.galleries import best_regions, show_word, word_vector
from teran_nb.core.config import check
from teran_nb.zoo.dual import DualConfig, DualEncoder
from teran_nb.zoo.small_models import TOY_FAMILIES, ScratchConfig, toy_folder, train_clip
from teran_nb.search.index import Index, ask
from teran_nb.search.own_pictures import encode_or_index, prepare_own

matplotlib.use("Agg")
SMALL = ScratchConfig(size=64, patch=16, dim=32, layers=2, heads=4, epochs=1, batch_size=8, captions_per_image=1)


@pytest.fixture(scope="module")
def clip(tmp_path_factory, drawn):
    "The folder of a small CLIP, hardly trained."
    folder = tmp_path_factory.mktemp("models") / "clip"
    train_clip(drawn, folder, SMALL)
    return folder


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("TERAN_NB_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("config", [DualConfig(), DualConfig(regions="boxes", ranking_head="alignment"), DualConfig(words="tokens", pooling="mravgw")],
                         ids=["patches and prompts", "boxes, ranked by the alignment", "tokens"])
def test_every_way_to_look_at_it(drawn, clip, config, tmp_path):
    model = DualEncoder(load_model(clip).family, config, "clip")
    check("encoder", model, [drawn[i] for i in range(3)], drawn.captions.texts[:4])
    result = look_at(model, drawn, tmp_path)
    assert result.images.boxes is not None
    alignment = next(model.alignments(drawn, result.images, result.captions))
    assert alignment.size == drawn[0].regions.size and alignment.boxes.max() <= max(alignment.size)


def test_boxes_in_figures_are_those_of_the_patches(drawn, clip):
    model = load_model(clip)
    images = model.encode_images(drawn)
    answers = best_regions(word_vector(model, "house"), images, 3)
    best = answers[0]
    width, height = best.size
    x1, y1, x2, y2 = best.box
    assert np.allclose([x2 - x1, y2 - y1], [width / 4, height / 4])
    assert len(show_word(drawn, answers, "house")) == 3
    finder = Finder(model, drawn, split="all").ask("a house")
    finder.word = 1
    assert finder.nearest_regions(1)[0].box[2:] != drawn[0].regions.boxes[0].tolist()[2:]
    finder.ask_by_picture(GivenImage("own", drawn[0].regions, picture=drawn[0].picture()))
    assert len(finder.page_items("model")) == 12


def test_small_pictures_have_boxes_in_pixels_of_the_features(drawn, clip, tmp_path):
    "A collection may hold reduced copies of its pictures; boxes of features and links are pixels of the originals."
    (tmp_path / "small").mkdir()
    for image in (drawn[i] for i in range(len(drawn))):
        image.picture().resize((80, 60)).save(tmp_path / "small" / f"{image.regions.image_id}.png")
    small = Collection(drawn.features, drawn.captions, tmp_path / "small")
    boxed = DualEncoder(load_model(clip).family, DualConfig(regions="boxes"))
    assert np.allclose(boxed.encode_images(small).boxes[0], drawn[0].regions.boxes, atol=1e-3)
    assert boxed.align(small[0], "a house").size == drawn[0].regions.size


def test_the_pictures_of_a_dataset_are_read(drawn, clip, tmp_path):
    few = drawn[:4]
    pictures = load_data(save_dataset(to_dataset(few), tmp_path / "pictures", captions="captions", ids="image_id", root=few[0].path.parent))
    model = load_model(clip)
    assert np.array_equal(model.encode_images(pictures).whole, model.encode_images(few).whole)
    assert evaluate(model, pictures).sim.shape == (4, len(few.captions))


@pytest.mark.slow
@pytest.mark.parametrize("kind", TOY_FAMILIES)
def test_every_family_explains_a_picture(kind, drawn, tmp_path):
    model = load_model(toy_folder(kind, tmp_path / kind))
    image, text = drawn[0], "a red kite above the small house"
    for config in (model.config, DualConfig(regions="boxes"), DualConfig(regions="windows")):
        encoder = DualEncoder(model.family, config)
        given = image if config.regions == "boxes" else image.path
        alignment = encoder.align(given, text)
        assert alignment.words == text.split() and alignment.size == image.picture().size
        assert alignment.cosines.isfinite().all() and alignment.cosines.abs().max() <= 1.0001
        assert (alignment.boxes[:, :2] <= alignment.boxes[:, 2:]).all() and alignment.boxes.max() <= max(alignment.size)
        assert encoder.similarity([image, given], [text, ""]).isfinite().all()


@pytest.mark.filterwarnings("ignore:.*sentences are longer than")
def test_a_matching_head_ranks_again(drawn, tmp_path):
    blip = DualEncoder(load_model(toy_folder("blip", tmp_path / "blip")).family)
    few = drawn[:4]
    first, again = evaluate(blip, few), evaluate(blip, few, rerank=2)
    assert again.result.only.about["rerank"] == 2
    assert (first.sim != again.sim).any()
    asked, reranked = (ask(blip, few, ["two boats"], rerank=k)[0] for k in (0, 2))
    assert asked.scores != reranked.scores and sorted(asked.ids) == sorted(reranked.ids)
    index = Index(blip)
    index.add(few)
    with pytest.raises(ValueError, match="rerank=2: an index does not hand pictures to the matching head"):
        ask(blip, index, ["two boats"], rerank=2)


def test_windows_ground_too(drawn, clip):
    model = DualEncoder(load_model(clip).family, DualConfig(regions="windows", scales=(1, 2)))
    alignment = model.align(drawn[0], drawn.captions.texts[0])
    assert len(alignment.boxes) == 16 * 10
    assert (alignment.boxes[:, :2] < alignment.boxes[:, 2:]).all()


def test_a_run_of_evaluation_by_the_folder(drawn, clip):
    result = evaluate_runs(clip, drawn)
    assert isinstance(result.model, DualEncoder) and result.about["model"] == "clip"
    pooled = evaluate_runs(clip, drawn, pooling="mrsw")
    assert pooled.about["pooling"] == "mrsw" and not torch.allclose(pooled.sim, result.sim)
    other = evaluate_runs(clip, drawn, dual={"dense": "kk", "regions": "windows"})
    assert (other.model.config.dense, other.model.config.regions) == ("kk", "windows") and torch.allclose(other.sim, result.sim, atol=1e-4)
    assert other.about["changed"] == "dense kk, regions windows" and not result.about["changed"]


def test_a_hub_name_without_network(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FileNotFoundError, match="nobody/no-such-model"):
        load_model("nobody/no-such-model")


def test_own_pictures(clip, tmp_path):
    models = open_models(clip)
    mine = prepare_own(models, output=tmp_path / "mine", show_progress_bar=False).open()
    hits, = ask(models["clip"], encode_or_index(models, mine, tmp_path / "encoded")["clip"], "a house", top=0)
    assert len(hits) == len(mine) and hits[0].path.is_file() and hits[0].alignment.boxes is not None


@pytest.mark.slow
def test_memory_is_that_of_the_patches(clip, tmp_path):
    "The collection has 36 regions a picture, the model 160 patches; only the patches need more than this memory."
    models = open_models(clip, dual={"regions": "windows"})
    mine = prepare_own(models, output=tmp_path / "mine", show_progress_bar=False).open()
    images = encode_or_index(models, mine, tmp_path / "index", memory=4e-4)["clip"]
    assert isinstance(images, Index) and "36 images" in repr(images)
    assert len(ask(models["clip"], images, "a house", top=0)[0]) == 36


def pages_of(folder):
    "The texts of a site's pages, strict HTML whose links are files; and the names of its figures."
    texts = {page.name: page.read_text(encoding="utf8") for page in folder.rglob("*.html")}
    for page in folder.rglob("*.html"):
        html5lib.HTMLParser(strict=True).parse(texts[page.name])
        for link in re.findall(r'(?:href|src)="([^"#]+)', texts[page.name]):
            assert link.startswith("data:") or (page.parent / link).is_file(), f"{page.name} links to {link}"
    texts = {name: " ".join(re.sub("<[^>]*>", "", text).split()) for name, text in texts.items()}
    return texts, {picture.stem for picture in folder.glob("*.png")}


@pytest.mark.slow
def test_evaluate_takes_a_folder_of_transformers(clip, tmp_path):
    "The numbers of the workflow are those of transformers' own scores, and grounding is that of its patches."
    world = play("evaluate", run=str(clip), output=str(tmp_path))["collection"]
    saved = json.loads((tmp_path / "metrics.json").read_text())
    model = load_model(clip)
    with torch.no_grad():
        pixels = model.family.processor([world[i].picture() for i in range(len(world))], return_tensors="pt")
        tokens = model.family.tokenizer(world.captions.texts, padding=True, return_tensors="pt", return_token_type_ids=False)
        sim = model.family.model(**pixels, **tokens).logits_per_image
    wanted = retrieval(sim, world.captions.image_of).metrics
    assert {name: saved["metrics"][name] for name in wanted} == pytest.approx(wanted)
    assert saved["about"]["model"] == "clip" and not saved["about"].get("pooling")
    found, links = saved["grounding"]["all"], [link for some in world.captions.links for link in some]
    assert len(world) < found["phrases"] <= len(links) and found["grounding"] <= found["grounding_possible"] < .5  # a patch is rarely a whole thing
    names = pages_of(tmp_path)[1]
    assert {"gallery", "sentences", "receipt", "heatmap", "grounding", "heats", "word"} <= names
    for name in names:
        with Image.open(tmp_path / f"{name}.png") as figure:
            assert min(figure.size) > 150 and figure.convert("L").getextrema()[0] < 100


@pytest.mark.slow
def test_gallery_takes_a_folder_of_transformers(clip, tmp_path):
    "By papermill, with options of the model."
    asked = {"max_queries": 6, "data": "scenes:tiny", "options": {"dense": "kk", "phrases": "red kite"}}
    papermill("gallery", tmp_path / "out.ipynb", run=str(clip), output=str(tmp_path), **asked)
    world = load_data("scenes:tiny").test
    pages, figures = pages_of(tmp_path)
    assert not figures and {"index.html", "sentences-1.html", "pictures-1.html"} <= pages.keys()
    assert "do not add up to that score" in pages["index.html"] and sum(text in pages["sentences-1.html"] for text in world.captions.texts) >= 6


@pytest.mark.slow
def test_explore_takes_a_folder_of_transformers(clip, tmp_path):
    explorer = play("explore", run=str(clip), query="a red kite", output=str(tmp_path), data="scenes:tiny", options={"regions": "windows"})["shown"][-1]
    finder = explorer.finder
    assert len(finder.models["clip"].align(finder.collection[0], "a kite").boxes) == 10 * 16
    sim = load_model(clip).similarity(finder.collection, "a red kite")[:, 0]
    items = finder.page_items("clip")
    assert items == sim.argsort(descending=True)[:len(items)].tolist()
    explorer.click(0)
    assert "answered in" in explorer.status.value and "do not add up to that score" in explorer.view.value


@pytest.mark.slow
def test_mine_takes_a_folder_of_transformers(clip, tmp_path):
    played = play("mine", run=str(clip), queries=["a red house", "two dogs"], output=str(tmp_path), options={"words": "tokens"})
    asked, photos = played["answers"], played["photos"]
    assert played["model"].config.words == "tokens" and "No single token" in played["model"].info.note
    assert asked.sentences == ["a red house", "two dogs"]
    assert torch.allclose(asked.matrix(photos.image_ids), load_model(clip).similarity(photos, asked.sentences), atol=1e-4)
    pages, figures = pages_of(tmp_path)
    assert figures == {"samples", "answers"} and {"index.html", "sentences-1.html"} <= pages.keys()
    assert all(text in pages["sentences-1.html"] for text in asked.sentences)


def test_an_index_does_not_mix_the_boxes_of_two_functions(drawn, clip, tmp_path):
    "A function without a name is refused; with names, the index of one refuses the other."
    def halves(pictures):
        return [[(0, 0, p.width / 2, p.height), (p.width / 2, 0, p.width, p.height)] for p in pictures]

    def middle(pictures):
        return [[(p.width / 4, p.height / 4, p.width * 3 / 4, p.height * 3 / 4)] for p in pictures]

    def model_by(function):
        return DualEncoder(load_model(clip).family, DualConfig(regions="boxes", ranking_head="alignment"), boxes=function)

    paths = [drawn[i].path for i in range(3)]
    with pytest.raises(ValueError, match=r'give it one, such as `boxes\.name = "halves"`'):
        model_by(halves)
    halves.name, middle.name = "halves", "middle"
    index = Index(model_by(halves), tmp_path / "index")
    index.add(paths[:2])
    assert index[:2].parts.lengths.tolist() == [2, 2]
    index.close()
    with pytest.raises(ValueError, match="holds what another model encoded"):
        Index(model_by(middle), tmp_path / "index")
