"""Numbers that must not change: scenes byte for byte, poolings and gradients, losses, ROUGE-L, and every recipe, trained and tested.

`python lab/freeze.py` compares with lab/frozen.json and names every difference; `python lab/freeze.py --record` writes that file.
Training takes two minutes on one core: each recipe learns for two epochs from the world `tiny`, with the networks of the scale
`scenes`. The file was first written by the code before the redesign (commit a8a5137b), on an AMD EPYC of family 25 with torch 2.13;
another processor rounds differently, so record there first. Run it with OMP_NUM_THREADS=1.
"""
import argparse
import hashlib
import json
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F

from teran_nb import compare, draw_scene, load_data, recipe, recipe_names, rouge_l
from teran_nb.model.alignment import POOLINGS

FROZEN = Path(__file__).with_name("frozen.json")


def scenes():
    "A checksum of picture, features, boxes and captions of a few scenes."
    for number in (0, 1, 2, 1_000_000):
        scene = draw_scene(number)
        checksum = hashlib.sha256(scene.png)
        checksum.update(scene.features.tobytes())
        checksum.update(scene.boxes.tobytes())
        checksum.update(json.dumps(scene.captions).encode())
        yield f"scene {number}", checksum.hexdigest()


def poolings():
    "Scores and the norm of the gradient of every pooling, on sets with padding."
    generator = torch.Generator().manual_seed(0)
    align = torch.rand(3, 4, 5, 6, generator=generator) * 2 - 1
    regions = torch.arange(5) < torch.tensor([5, 3, 1])[:, None]
    words = torch.arange(6) < torch.tensor([6, 3, 1, 5])[:, None]

    def among(sets, size):
        vectors = F.normalize(torch.randn(sets, size, 8, generator=generator), dim=-1)
        return vectors @ vectors.mT

    self_cosines = among(3, 5), among(4, 6)
    for name, pooling in sorted(POOLINGS.items()):
        cosines = align.clone().requires_grad_()
        scores = pooling(cosines, regions, words, *(self_cosines if pooling.needs_self_cosines else ()))
        scores.sum().backward()
        yield f"pooling {name}", [scores.flatten().tolist(), cosines.grad.norm().item()]


def trainings(data, folder):
    "Losses, validations and tests of every recipe."
    table = compare([recipe(name, epochs=2) for name in recipe_names()], data, seeds=[0], output=folder, device="cpu")
    for name, measured in table.lines.items():
        yield f"test {name}", dict(measured[0].metrics)
    for log in sorted(folder.rglob("log.jsonl")):
        epochs = [json.loads(line) for line in log.read_text().splitlines()]
        yield f"log {log.parent.relative_to(folder)}", [{k: v for k, v in epoch.items() if k != "seconds"} for epoch in epochs]


def numbers():
    torch.set_num_threads(1)
    data = load_data("scenes:tiny")
    found = dict(scenes()) | dict(poolings())
    found["rouge"] = float(rouge_l(data.test.captions).values.astype("float64").sum())
    with tempfile.TemporaryDirectory() as folder:
        return found | dict(trainings(data, Path(folder)))


def differences(before, now, place=""):
    "Every number that differs, with its place."
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            if key not in before or key not in now:
                yield f"{place} {key}: only {'now' if key in now else 'before'}"
            else:
                yield from differences(before[key], now[key], f"{place} {key}")
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for i, pair in enumerate(zip(before, now)):
            yield from differences(*pair, f"{place}[{i}]")
    elif before != now and not (before != before and now != now):  # NaN is itself
        yield f"{place}: {before} before, {now} now"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--record", action="store_true", help="write the numbers of this code")
    found = numbers()
    if parser.parse_args().record:
        FROZEN.write_text(json.dumps(found, indent=1) + "\n")
        sys.exit()
    changed = list(differences(json.loads(FROZEN.read_text()), found))
    print("\n".join(changed) or f"{len(found)} groups of numbers are as before")
    sys.exit(bool(changed))
