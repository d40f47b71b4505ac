"""A part of a board is trained, stopped, continued and drawn."""
import os
import signal

import pandas as pd
import pytest
from conftest import papermill
from PIL import Image

from teran_nb.training import learner, runs
from teran_nb.training.compare import board, compare
from teran_nb.training.datasets import load_data


def test_a_stopped_cell_goes_on(tmp_path, monkeypatch):
    "Ctrl-C in the middle of an epoch; the same call goes on, and its numbers are those of a cell that was never stopped."
    data, cells = load_data("scenes:tiny"), board(["xtr"], ["sigmoid"], "tiny", epochs=1)
    learning_rate_at, calls = learner.learning_rate_at, []

    def stops(config, step, per_epoch):
        calls.append(step)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return learning_rate_at(config, step, per_epoch)

    monkeypatch.setattr(learner, "learning_rate_at", stops)
    with pytest.raises(KeyboardInterrupt, match="after step 3"):
        compare(cells, data, output=tmp_path / "stopped")
    folder, = (tmp_path / "stopped").iterdir()
    assert not runs.Run(folder).is_finished
    continued = compare(cells, data, output=tmp_path / "stopped")
    whole = compare(cells, data, output=tmp_path / "whole")
    assert continued.lines["xtr-sigmoid"][0].metrics == whole.lines["xtr-sigmoid"][0].metrics
    steps = len(calls)
    compare(cells, data, output=tmp_path / "stopped")
    assert len(calls) == steps  # finished cells are read


@pytest.mark.slow
def test_the_workflow_draws_what_it_trained(tmp_path):
    about = {"models": [], "rankers": ["mrsw", "gpo"], "losses": ["infonce", "sparc"], "options": {"epochs": 1}}
    papermill("compare", tmp_path / "out.ipynb", **about, seeds=[0], output=str(tmp_path))
    table = pd.read_csv(tmp_path / "table.csv")
    assert list(zip(table.ranker, table.loss)) == [("mrsw", "infonce"), ("gpo", "infonce"), ("mrsw", "sparc"), ("gpo", "sparc")]
    assert table.seconds.gt(0).all() and table.t2i_r10.between(0, 1).all()
    for name in ("board", "board-words"):
        with Image.open(tmp_path / f"{name}.png") as figure:
            assert min(figure.size) > 100
