"""The open photographs: their page of credits, and where they are looked for."""
import json
import os
import runpy
import shutil
import subprocess
import sys

import pytest
import torch

from conftest import ROOT
from teran_nb.core.hub import wheel_weights
from teran_nb.training.runs import PACKAGED, model_folders
from teran_nb.photos.efficientnet import EfficientNet


def test_the_page_of_credits_is_what_its_command_writes():
    written = runpy.run_path(str(ROOT / "data/photos/make.py"))["credits"](json.loads((ROOT / "data/photos/photos.json").read_text(encoding="utf8")))
    assert written == (ROOT / "data/photos/CREDITS.md").read_text(encoding="utf8")


def test_every_file_is_credited_and_small():
    photos = json.loads((ROOT / "data/photos/photos.json").read_text(encoding="utf8"))
    files = sorted((ROOT / "data/photos/images").iterdir())
    assert sorted(photo["file"] for photo in photos) == [file.name for file in files]
    assert sum(file.stat().st_size for file in files) < 5_500_000


def test_without_the_repository_a_sentence_says_what_to_do(tmp_path):
    shutil.copytree(ROOT / "teran_nb", tmp_path / "site/teran_nb")
    (tmp_path / "work").mkdir()
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run([sys.executable, "-c", "from teran_nb import load_data; load_data('photos')"],
                          cwd=tmp_path / "work", env=environment, capture_output=True, text=True)
    assert f"and not in its package; copy that folder to {tmp_path / 'work/data/photos'}" in done.stderr


def test_the_network_is_that_of_the_published_package(tmp_path):
    target = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path), "efficientnet_lite_pytorch==0.1.0"]
    if subprocess.run(target, capture_output=True).returncode:
        pytest.skip("efficientnet_lite_pytorch is not to be had: no package registry")
    sys.path.insert(0, str(tmp_path))
    try:
        from efficientnet_lite_pytorch import EfficientNet as Published
    finally:
        sys.path.remove(str(tmp_path))
    published = Published.from_name("efficientnet-lite2", image_size=288).eval()
    published.load_state_dict(torch.load(wheel_weights("efficientnet-lite2"), weights_only=True))
    pictures = torch.randn(2, 3, 288, 288, generator=torch.Generator().manual_seed(0))
    ours = EfficientNet()
    with torch.no_grad():
        features, logits = published.extract_features(pictures), published(pictures)
        maps = ours.forward(pictures)
        ours_logits = ours.model.fc(maps.mean((2, 3)))
    for found, expected in ((maps, features), (ours_logits, logits)):
        assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_a_folder_of_data_does_not_hide_the_model_of_its_name(tmp_path, monkeypatch):
    "results/photographs.md itself keeps the photographs in a folder `flickr8k`."
    (tmp_path / "flickr8k/images").mkdir(parents=True)
    monkeypatch.setattr("teran_nb.training.runs.project_path", lambda path, *_: tmp_path / path)
    assert model_folders("flickr8k") == [PACKAGED / "flickr8k"]
    (tmp_path / "flickr8k/model").mkdir()
    (tmp_path / "flickr8k/model/model.safetensors").touch()
    assert model_folders("flickr8k") == [tmp_path / "flickr8k/model"]
