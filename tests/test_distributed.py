"""Two processes compute the loss and the gradients that one process computes on the whole batch, with gloo on the CPU.

Two processes prepare and encode a collection, and one of them is killed: the collection and the encoded images are those of one process, row by row.
"""
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from conftest import ROOT

from teran_nb.core.config import override
from teran_nb.core.processes import seed_everything, this_share
from teran_nb.data.collection import Collection
from teran_nb.scenes.scenes import example_pictures
from teran_nb.training.batches import Batches, split_into_batches
from teran_nb.training.objective import Objective
from teran_nb.training.train_config import TrainConfig
from teran_nb.model.matcher import make_matcher
from teran_nb.training.datasets import load_data
from teran_nb.training.plans import make_plan
from teran_nb.training.runs import train_run
from teran_nb.model.encoding_cache import load_or_encode
from teran_nb.photos.prepare import prepare
from teran_nb.photos.recipes import Recipe

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


def step(model, rank=0, world=1):
    "Loss and gradients of one batch, or of this process's share of it."
    data = load_data(world="tiny")
    p = make_plan(data, model, "tiny", device="cpu")
    seed_everything(0)
    m = make_matcher(p.network, data.train.captions.texts)
    batch = Batches(data.train, m.text.tokenize(data.train.captions.texts), split_into_batches(data.train.captions.image_of, 15, 2), rank, world)[0]
    accelerator = Accelerator(cpu=True)
    objective = accelerator.prepare(Objective(m, TrainConfig(iais=p.training.iais)))
    loss = objective(batch, 1.0)
    accelerator.backward(loss)
    bare = accelerator.unwrap_model(objective)
    return loss.item(), {k: v.grad for k, v in bare.named_parameters() if v.grad is not None}


@pytest.mark.slow
def test_the_first_error_is_shown(tmp_path):
    data = load_data(world="tiny")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "last.pt").write_bytes(b"cut off")
    with pytest.raises(RuntimeError, match=r"failed: Traceback[\s\S]+Error: [^\n]*last.pt"):
        train_run(make_plan(data, preset="tiny", epochs=1, device="cpu"), data, tmp_path / "run", processes=2)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["teran-symm", "tern-align", "iais-distributed"])
def test_two_processes_are_one(model, tmp_path):
    done = subprocess.run([*TORCHRUN, __file__, model, str(tmp_path)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    loss, grads = step(model)
    for rank in (0, 1):
        got = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert got["loss"] == pytest.approx(loss, rel=1e-4)
        assert got["grads"].keys() == grads.keys()
        for k, v in grads.items():
            assert (got["grads"][k] - v).norm() <= 1e-4 * v.norm() + 1e-5, k
    assert json.loads((tmp_path / "world.json").read_text()) == 2


def encoder():
    "A model that is not trained, of the features of windows."
    data = load_data(world="tiny")
    seed_everything(0)
    config = override(make_plan(data, "teran-symm", "tiny", device="cpu").network, {"regions.extractor": ""})
    return make_matcher(config, data.train.captions.texts).eval()


def work_on_a_collection(folder, recipe):
    "What each of two processes does: prepare, encode in chunks of ten images, and save what it got."
    share, folder = this_share(), Path(folder)
    collection = prepare(Recipe(**json.loads(recipe)), folder, show_progress_bar=False).open()
    images = load_or_encode(encoder(), collection, folder.with_name("encoded"), share=share, chunk=10)
    torch.save({"values": images.parts.values, "offsets": images.parts.offsets}, folder.with_name(f"{share.rank}.pt"))


@pytest.mark.slow
def test_a_killed_process_and_two_that_go_on_prepare_what_one_does(tmp_path):
    pictures = tmp_path / "pictures"
    shutil.copytree(example_pictures(), pictures)
    (pictures / "IMG_0002.JPG").write_bytes(b"torn")
    recipe = {"pictures": str(pictures), "extractor_settings": {"count": 97}}
    words = [str(tmp_path / "shared"), json.dumps(recipe)]
    module = [sys.executable, "-m", "teran_nb.photos.prepare", *words]
    second = subprocess.Popen(module, cwd=ROOT, env=os.environ | {"RANK": "1", "WORLD_SIZE": "2"}, stderr=subprocess.DEVNULL)
    store = tmp_path / ".shared.preparing/features/share1"
    begun, end = store.with_name(".share1.unfinished") / "journal", time.time() + 120
    while not begun.is_file():
        assert second.poll() is None and time.time() < end
        time.sleep(0.005)
    second.kill()
    second.wait()
    assert not store.is_dir(), "it was killed too late to show anything"
    done = subprocess.run([*TORCHRUN, __file__, "collection", *words], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    alone = prepare(Recipe(**recipe), tmp_path / "alone", show_progress_bar=False)
    one, two = alone.open(), Collection.open(tmp_path / "shared")
    assert two.features.verify().manifest["shares"] == ["share0", "share1"]
    assert two.image_ids == one.image_ids and len(two) == 35
    assert json.loads((tmp_path / "shared/collection.json").read_text())["left_out"] == alone.left_out
    assert two.features.offsets.tolist() == one.features.offsets.tolist()
    for i in range(len(one)):
        assert (two[i].regions.features == one[i].regions.features).all() and (two[i].regions.boxes == one[i].regions.boxes).all()
        assert two.picture_path(one.image_ids[i]) == one.picture_path(one.image_ids[i])
    assert sorted(p.name for p in (tmp_path / "shared").iterdir()) == sorted(p.name for p in (tmp_path / "alone").iterdir())
    assert not list(tmp_path.glob(".*"))
    encoded = encoder().encode_images(one)
    for rank in (0, 1):
        got = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert (got["values"] - encoded.parts.values).abs().max() < 1e-6 and got["offsets"].tolist() == encoded.parts.offsets.tolist()


if __name__ == "__main__":
    from accelerate import PartialState

    if sys.argv[1] == "collection":
        sys.exit(work_on_a_collection(*sys.argv[2:]))
    state = PartialState(cpu=True)
    loss, grads = step(sys.argv[1], state.process_index, state.num_processes)
    torch.save({"loss": loss, "grads": grads}, f"{sys.argv[2]}/{state.process_index}.pt")
    if state.is_main_process:
        with open(f"{sys.argv[2]}/world.json", "w") as f:
            json.dump(state.num_processes, f)
