"""Training that is killed and resumed ends with the digits of training that was not, also where an earlier version wrote the checkpoint."""
import json
import subprocess
import time
from dataclasses import replace

import psutil
import pytest
import torch
from conftest import ROOT, command, papermill

from teran_nb.core.config import rename_fields
from teran_nb.core.processes import seed_everything
from teran_nb.data.collection import toy_collection
from teran_nb.training.checkpoints import EARLIER_TRAIN_FIELDS, data_hashes, write_checkpoint
from teran_nb.training.learner import fit
from teran_nb.training.train_config import TrainConfig
from teran_nb.model.network import Network, small_network

LONG = {"overrides": {"train.epochs": 6, "train.captions_per_image": 1, "train.batch_size": 4}}


def rows(run):
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in (run / "log.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_kill_minus_nine(tmp_path):
    papermill("train", tmp_path / "out.ipynb", output=str(tmp_path), name="whole", **LONG)
    run = tmp_path / "killed"
    process = subprocess.Popen(command("train", tmp_path / "out.ipynb", output=str(tmp_path), name="killed", **LONG), cwd=ROOT,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.time() + 120
    while not ((run / "log.jsonl").is_file() and len(rows(run)) >= 2):
        assert process.poll() is None and time.time() < end
        time.sleep(.05)
    for p in [*psutil.Process(process.pid).children(recursive=True), process]:
        p.kill()
    process.wait()
    done = len(rows(run))
    assert 2 <= done < 6, "it was killed too late to show anything"
    papermill("train", tmp_path / "out.ipynb", output=str(tmp_path), resume="killed", **LONG)
    assert rows(run) == rows(tmp_path / "whole")
    both = [json.loads((tmp_path / name / "metrics.json").read_text())["metrics"] for name in ("whole", "killed")]
    assert both[0] == both[1]


QUICK = TrainConfig(epochs=3, batch_size=8, captions_per_image=2, learning_rate=.01)


class Stopping:
    "Trainings of a toy model, whole or stopped after the first epoch."

    def __init__(self, config, folder):
        self.config, self.folder, self.toy = config, folder, toy_collection(folder / "toy")

    def fit(self, name, epochs=3, resume=False):
        seed_everything(0)
        model = Network.build(small_network(32, features=12, dropout=.1), self.toy.captions.texts)
        history = fit(model, self.toy, self.toy, replace(self.config, epochs=epochs), self.folder / name, resume, "cpu")
        return model, history.to_pandas().drop(columns="seconds").to_dict("records")

    def rewritten(self, change):
        "Numbers of a run that goes on after its checkpoint was changed, and of one in one piece."
        whole = self.fit("whole")[1]
        model, _ = self.fit("stopped", epochs=1)
        state = torch.load(self.folder / "stopped/last.pt", weights_only=True)
        change(state, model)
        write_checkpoint(state, self.folder / "stopped")
        return self.fit("stopped", resume=True)[1], whole


def test_fields_and_hash_of_an_earlier_version(tmp_path):
    "The fields had other names, the hash of the data knew no features, and no seconds were kept."
    stopping = Stopping(QUICK, tmp_path)

    def change(state, model):
        del state["seconds"]
        for part, names in (("train", EARLIER_TRAIN_FIELDS),):
            state["config"][part] = rename_fields(state["config"][part], {today: before for before, today in names.items()})
        assert "learning_rate" not in state["config"]["train"]
        stored, earlier = data_hashes(stopping.toy, stopping.toy, model.text.tokenizer.get_vocab(), ["rouge"])
        assert state["data"] == stored != earlier
        state["data"] = earlier

    resumed, whole = stopping.rewritten(change)
    assert resumed == whole


def test_learned_parameters_of_an_earlier_version(tmp_path):
    "The learned parameters of the loss had names without a prefix."
    def change(state, model):
        state["objective"] = {name.removeprefix("criterion."): value for name, value in state["objective"].items()}
        assert "log_scale" in state["objective"]

    resumed, whole = Stopping(replace(QUICK, loss="infonce"), tmp_path).rewritten(change)
    assert resumed == whole
