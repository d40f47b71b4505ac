"""A part of the board is trained, stopped, continued and drawn."""
import os
import signal

import pandas as pd
import pytest
from conftest import papermill
from PIL import Image

from teran_nb.training import learner
from teran_nb.training.board import board
from teran_nb.training.datasets import load_data


def test_a_stopped_cell_goes_on(tmp_path, monkeypatch):
    "Ctrl-C in the middle of an epoch; the same call goes on, and its numbers are those of a cell that was never stopped."
    data, asked = load_data(world="tiny"), {"losses": ["sigmoid"], "preset": "tiny", "epochs": 1}
    learning_rate_at, calls = learner.learning_rate_at, []

    def stops(config, step, per_epoch):
        calls.append(step)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return learning_rate_at(config, step, per_epoch)

    monkeypatch.setattr(learner, "learning_rate_at", stops)
    with pytest.raises(KeyboardInterrupt, match="after step 3"):
        board(data, ["xtr"], output=tmp_path / "stopped", **asked)
    assert len(board(data, ["xtr"], output=tmp_path / "stopped", trains=False, **asked)) == 0
    continued = board(data, ["xtr"], output=tmp_path / "stopped", **asked)
    whole = board(data, ["xtr"], output=tmp_path / "whole", **asked)
    assert continued.cells[0].result.metrics == whole.cells[0].result.metrics
    steps = len(calls)
    board(data, ["xtr"], output=tmp_path / "stopped", **asked)
    assert len(calls) == steps  # finished cells are read


@pytest.mark.slow
def test_the_workflow_draws_what_it_trained(tmp_path):
    about = {"rankers": ["mrsw", "gpo"], "losses": ["infonce", "sparc"], "world": "tiny", "epochs": 1, "batch_size": 16}
    papermill("board", tmp_path / "out.ipynb", **about, output=str(tmp_path), figures=str(tmp_path))
    table = pd.read_csv(tmp_path / "board.csv")
    assert list(zip(table.ranker, table.loss)) == [("mrsw", "infonce"), ("gpo", "infonce"), ("mrsw", "sparc"), ("gpo", "sparc")]
    assert table.seconds.gt(0).all() and table.t2i_r10.between(0, 1).all()
    assert "no, its vector is not kept" in (tmp_path / "board.md").read_text(encoding="utf8")
    for name in ("board", "board-words"):
        with Image.open(tmp_path / f"{name}.png") as figure:
            assert min(figure.size) > 100
