"No tensor of training, testing or searching is left on the wrong device; a GPU is not needed to know."
import os
import subprocess
import sys
from pathlib import Path

import pytest

PRETEND = Path(__file__).parent / "pretend.py"
MIXED = """
import torch, pretend
held = pretend.register()
with pretend.Pretending():
    x = torch.ones(3, 4).to(pretend.GPU)
    assert x.device == pretend.GPU and (x + x).sum().item() == 24 and x.cpu().device.type == "cpu"
    x[torch.tensor([2, 0])]
    for refused in (lambda: x + torch.ones(3, 4), lambda: x.numpy(), lambda: torch.cat([x, torch.ones(3, 4)])):
        try: refused()
        except (RuntimeError, TypeError) as e: print(type(e).__name__)
"""


def run(*command):
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=PRETEND.parent, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    if "ImportError" in done.stderr and "backend_registration" in done.stderr: pytest.skip("this torch cannot pretend a device")
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_what_a_gpu_refuses_is_refused():
    assert run("-c", MIXED) == ["RuntimeError", "TypeError", "RuntimeError"]


@pytest.mark.slow
def test_every_head_runs_on_another_device():
    rows = ["tern-align", "teran-mrsw", "iais-singular", "cgam:bert"]
    assert [line.partition(": ")[0] for line in run(PRETEND, *rows)] == rows
