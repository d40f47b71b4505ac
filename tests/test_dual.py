"""A pretrained dual encoder goes through the same places as our own models, on drawn scenes with pictures."""
import matplotlib
import numpy as np
import pytest
import torch
from conftest import play
from test_sockets import look_at

from teran_nb.data.collection import Collection
from teran_nb.data.scenes import draw_world
from teran_nb.experiment.runs import evaluate_run, load_model
from teran_nb.look.finder import Finder, own_picture
from teran_nb.look.galleries import best_regions, show_word, word_vector
from teran_nb.look.mine import open_mine
from teran_nb.pretrained.dual import DualConfig, DualEncoder
from teran_nb.pretrained.families import RANDOM, save_random
from teran_nb.pretrained.scratch import ScratchConfig, train_clip

matplotlib.use("Agg")
SMALL = ScratchConfig(size=64, patch=16, dim=32, layers=2, heads=4, epochs=1, images=8, captions=1)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    "Sixteen drawn scenes."
    folder = tmp_path_factory.mktemp("world") / "scenes"
    draw_world(folder, counts=(8, 4, 4), workers=1)
    return Collection.open(folder)


@pytest.fixture(scope="module")
def clip(tmp_path_factory, world):
    "The folder of a small CLIP, hardly trained."
    folder = tmp_path_factory.mktemp("models") / "clip"
    train_clip(world, folder, SMALL)
    return folder


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("TERAN_NB_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("config", [DualConfig(), DualConfig(regions="boxes", score="alignment"), DualConfig(words="tokens", pooling="mravgw")],
                         ids=["patches and prompts", "boxes, ranked by the alignment", "tokens"])
def test_every_way_to_look_at_it(world, clip, config, tmp_path):
    model = DualEncoder(load_model(clip).family, config, "clip")
    result = look_at(model, world, tmp_path)
    assert result.images.boxes is not None
    alignment = next(model.alignments(world, result.images, result.captions))
    assert alignment.size == world[0].regions.size and alignment.boxes.max() <= max(alignment.size)


def test_boxes_in_figures_are_those_of_the_patches(world, clip):
    model = load_model(clip)
    images = model.encode_images(world)
    answers = best_regions(word_vector(model, "house"), images, 3)
    width, height = world[answers.images[0]].regions.size
    x1, y1, x2, y2 = answers.box(0, world[answers.images[0]].regions)[0]
    assert np.allclose([x2 - x1, y2 - y1], [width / 4, height / 4])
    assert len(show_word(world, answers, "house")) == 3
    finder = Finder(model, world, split="all").ask("a house")
    assert finder.nearest_regions(1, 1)[0].box[2:] != world[0].regions.boxes[0].tolist()[2:]
    finder.ask_by_picture(own_picture(world[0].path, lambda picture: world[0].regions))
    assert len(finder.page_items("model")) == 12


def test_small_pictures_have_boxes_in_pixels_of_the_features(world, clip, tmp_path):
    "A collection may hold reduced copies of its pictures; boxes of features and links are pixels of the originals."
    (tmp_path / "small").mkdir()
    for image in (world[i] for i in range(len(world))):
        image.picture().resize((80, 60)).save(tmp_path / "small" / f"{image.regions.image_id}.png")
    small = Collection(world.features, world.captions, tmp_path / "small")
    boxed = DualEncoder(load_model(clip).family, DualConfig(regions="boxes"))
    assert np.allclose(boxed.encode_images(small).boxes[0], world[0].regions.boxes, atol=1e-3)
    assert boxed.align(small[0], "a house").size == world[0].regions.size


@pytest.mark.slow
@pytest.mark.parametrize("kind", RANDOM)
def test_every_family_explains_a_picture(kind, world, tmp_path):
    model = load_model(save_random(kind, tmp_path / kind))
    image, text = world[0], "a red kite above the small house"
    for config in (model.config, DualConfig(regions="boxes"), DualConfig(regions="windows")):
        encoder = DualEncoder(model.family, config)
        given = image if config.regions == "boxes" else image.path
        alignment = encoder.align(given, text)
        assert alignment.words == text.split() and alignment.size == image.picture().size
        assert alignment.cosines.isfinite().all() and alignment.cosines.abs().max() <= 1.0001
        assert (alignment.boxes[:, :2] <= alignment.boxes[:, 2:]).all() and alignment.boxes.max() <= max(alignment.size)
        assert encoder.similarity([image, given], [text, ""]).isfinite().all()


def test_windows_ground_too(world, clip):
    model = DualEncoder(load_model(clip).family, DualConfig(regions="windows", scales=(1, 2)))
    alignment = model.align(world[0], world.captions.texts[0])
    assert len(alignment.boxes) == 16 * 10
    assert (alignment.boxes[:, :2] < alignment.boxes[:, 2:]).all()


def test_a_run_of_evaluation_by_the_folder(world, clip):
    model, result = evaluate_run(clip, world)
    assert isinstance(model, DualEncoder) and result.about["model"] == "clip"
    _, pooled = evaluate_run(clip, world, pooling="mrsw")
    assert pooled.about["pooling"] == "mrsw" and not torch.allclose(pooled.sim, result.sim)


def test_a_hub_name_without_network(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FileNotFoundError, match="nobody/no-such-model"):
        load_model("nobody/no-such-model")


def test_own_pictures(clip, tmp_path):
    mine = open_mine(clip, output=tmp_path / "mine", show=False)
    asked = mine.ask("a house")
    assert len(asked.sim) == len(mine.collection) and "clip" in mine._repr_markdown_()


@pytest.mark.slow
@pytest.mark.parametrize("workflow", ["evaluate", "gallery", "explore", "mine"])
def test_workflows_take_a_folder_of_transformers(workflow, clip, tmp_path):
    play(workflow, run=str(clip), output=str(tmp_path / workflow))
