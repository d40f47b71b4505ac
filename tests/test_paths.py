"""Paths as users type them: `~` is the home directory wherever a path is taken, nothing makes a folder called `~`, and an empty path is refused."""
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import play
from PIL import Image
from transformers import ViTConfig

from teran_nb import load_model
from teran_nb.core.files import cache_home, load_tensors, require_archive, save_tensors
from teran_nb.data.caption_files import read_captions
from teran_nb.data.collection import Collection
from teran_nb.data.features import Features
from teran_nb.data.pictures import read_picture
from teran_nb.model.network import Network
from teran_nb.photos.fine_tuning import TrainableBackbone
from teran_nb.photos.vision import TINY_VISION, Backbone, save_random_vision
from teran_nb.zoo.dual import DualEncoder
from teran_nb.zoo.small_models import toy_folder


@pytest.fixture
def at_home(tmp_path, monkeypatch):
    "A home directory with two photographs, and another folder to work in."
    home, work = tmp_path / "home", tmp_path / "work"
    (home / "photos").mkdir(parents=True)
    work.mkdir()
    (work / "settings.ini").touch()
    for name in ("one", "two"):
        noise = np.random.default_rng(len(name)).integers(0, 256, (40, 60, 3), dtype=np.uint8)
        Image.fromarray(noise).save(home / "photos" / f"{name}.jpg")
    (home / "photos" / "captions.csv").write_text("image,caption\none,a dog\ntwo,a cat")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(work)
    return home


def test_the_home_directory(at_home):
    "From photographs to a heat map, every path with a tilde."
    toy_folder("clip", "~/clip")
    with pytest.warns(UserWarning, match="captions.csv: no splits"):
        made = play("prepare", cwd=".", pictures="~/photos", captions="~/photos/captions.csv", extractor="patches:~/clip", output="~/made", device="cpu")
    assert len(Collection.open("~/made")) == len(Features("~/made/features")) == len(read_captions("~/made/captions.json")) == 2
    assert made["done"].open().picture_path("one").is_file()
    for open_model in (load_model, DualEncoder.from_pretrained):
        a = open_model("~/clip").align("~/photos/one.jpg", "a dog")
        assert a.heat("dog").shape == (32, 48) and a.image.picture().size == (60, 40)
    kept = DualEncoder.from_pretrained("~/clip", cache_folder="~/kept")
    kept.encode_images(Collection.open("~/made"))
    assert [p.name for p in at_home.glob("*")].count("kept") == 1 and not list(Path.cwd().glob("~*"))


def test_single_files(at_home):
    save_tensors({"a": torch.ones(2)}, "~/a.safetensors")
    np.savez(at_home / "a.npz", features=np.ones(3))
    require_archive("~/a.npz")
    assert len(load_tensors("~/a.safetensors")["a"]) == 2 and read_picture("~/photos/one.jpg")[1] == (60, 40)


def test_a_vision_model(at_home):
    save_random_vision(at_home / "vit", ViTConfig(**TINY_VISION))
    TrainableBackbone(Backbone("~/vit")).save("~/learning")
    assert TrainableBackbone.load("~/learning").backbone.name == "learning" and not list(Path.cwd().glob("~*"))
    assert Backbone("~/vit").name == Backbone(str(at_home / "vit")).name # which a feature store keeps


def test_the_folder_of_caches(at_home, monkeypatch):
    monkeypatch.setenv("TERAN_NB_HOME", "~/caches")
    assert cache_home() == at_home / "caches"


def test_a_model_is_saved_at_home(at_home, trained):
    model = load_model(trained)
    model.save("~/saved")
    model.save_pretrained("~/shared")
    assert (at_home / "shared/README.md").is_file() and not list(Path.cwd().glob("~*"))
    for folder in ("~/saved", "~/shared"):
        assert Network.load(folder).config == load_model(folder).config == model.config


@pytest.mark.parametrize("opens", [load_model, Network.load, Collection.open, Features, read_captions, DualEncoder.from_pretrained])
def test_an_empty_path_is_refused(at_home, opens):
    with pytest.raises((ValueError, FileNotFoundError), match="the path is empty; name a file or folder|no pretrained dual encoder"):
        opens("")
    with pytest.raises((ValueError, FileNotFoundError), match="home directory is known for ~nobody-here"):
        opens("~nobody-here/x")
