"""The open photographs: their page of credits, and where they are looked for."""
import json
import os
import runpy
import shutil
import subprocess
import sys

from conftest import ROOT


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
