"""Two processes compute the loss and the gradients that one process computes on the whole batch, with gloo on the CPU.
"""
import json
import subprocess
import sys

import pytest
import torch
from accelerate import Accelerator

from teran_nb.core.config import override
from teran_nb.core.processes import seed_everything
from teran_nb.training.batches import Batches, split_into_batches
from teran_nb.training.learner import Objective
from teran_nb.training.recipe import TrainConfig, recipe
from teran_nb.model.network import Network
from teran_nb.training.datasets import load_data
from teran_nb.training.runs import train

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


def step(model, rank=0, world=1):
    "Loss and gradients of one batch, or of this process's share of it."
    data = load_data("scenes:tiny")
    p = recipe(model, "tiny").for_data(data)
    seed_everything(0)
    m = Network.build(p.network, data.train.captions.texts)
    batch = Batches(data.train, m.text.tokenize(data.train.captions.texts), split_into_batches(data.train.captions.image_of, 15, 2), rank, world)[0]
    accelerator = Accelerator(cpu=True)
    objective = accelerator.prepare(Objective(m, TrainConfig(iais=p.train.iais)))
    loss = objective(batch, 1.0)
    accelerator.backward(loss)
    bare = accelerator.unwrap_model(objective)
    return loss.item(), {k: v.grad for k, v in bare.named_parameters() if v.grad is not None}


@pytest.mark.slow
def test_the_first_error_is_shown(tmp_path):
    data = load_data("scenes:tiny")
    run = tmp_path / "run"
    run.mkdir()
    (run / "last.pt").write_bytes(b"cut off")
    with pytest.raises(RuntimeError, match=r"failed: Traceback[\s\S]+Error: [^\n]*last.pt"):
        train(recipe("teran-mrsw", "tiny", epochs=1), data, run, "cpu", processes=2)


@pytest.mark.slow
def test_two_processes_are_recorded_and_write_for_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    run = train(recipe("teran-mrsw", "tiny", epochs=1), load_data("scenes:tiny"), tmp_path / "run", "cpu", processes=2, tensorboard=True)
    assert json.loads((run.folder / "environment.json").read_text())["processes"] == 2
    assert list((run.folder / "tensorboard").iterdir())


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
    data = load_data("scenes:tiny")
    seed_everything(0)
    config = override(recipe("teran-symm", "tiny").for_data(data).network, {"regions.extractor": ""})
    return Network.build(config, data.train.captions.texts).eval()


if __name__ == "__main__":
    from accelerate import PartialState

    state = PartialState(cpu=True)
    loss, grads = step(sys.argv[1], state.process_index, state.num_processes)
    torch.save({"loss": loss, "grads": grads}, f"{sys.argv[2]}/{state.process_index}.pt")
    if state.is_main_process:
        with open(f"{sys.argv[2]}/world.json", "w") as f:
            json.dump(state.num_processes, f)
