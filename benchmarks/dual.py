"""A dual encoder beside TERAN on the drawn scenes: retrieval and grounding of both, by the same functions.

`python benchmarks/dual.py` prints a table in markdown (a few minutes of one core). It needs `runs/scenes-teran-mrsw` (the README's first command) and
`runs/scenes-clip` (`train_clip(scenes("train"), "runs/scenes-clip")`, from teran_nb.pretrained.scratch). `--only` names the rows to print.
"""
import argparse, sys, tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from common import machine
from teran_nb.core.display import markdown_table
from teran_nb.data.collection import Collection
from teran_nb.data.scenes import draw_world, scenes
from teran_nb.experiment.evaluation import evaluate
from teran_nb.experiment.runs import load_model
from teran_nb.pretrained.dual import DualEncoder
from teran_nb.pretrained.random_models import save_random

ROWS = {
    "patches, kk, prompts": {"dense": "kk"},
    "patches, kk, tokens": {"dense": "kk", "words": "tokens"},
    "patches, none, prompts": {"dense": "none"},
    "patches, none, tokens": {"dense": "none", "words": "tokens"},
    "patches, value, prompts": {"dense": "value"},
    "patches, qq+kk, prompts": {"dense": "qq+kk"},
    "patches, qq, prompts": {"dense": "qq"},
    "boxes of the collection, none, RoI-align": {"dense": "none", "regions": "boxes"},
    "boxes of the collection, attention": {"dense": "none", "regions": "boxes", "boxes_by": "attention"},
    "windows, none": {"dense": "none", "regions": "windows"},
} # Ways to look at the CLIP
COLUMNS = ["", "t2i R@1 / R@10 %", "i2t R@1 / R@10 %", "grounding accuracy %", "accuracy, random %", "accuracy, best possible %", "accuracy, heat map %", "pointing %",
           "pointing, random %", "pointing, heat map %"]


def row(name, model, world):
    "What one model reaches, in %."
    result = evaluate(model, world)
    m, g = result.metrics, result.grounding.kinds["all"]
    pairs = [f"{100*m[side+'_r1']:.1f} / {100*m[side+'_r10']:.1f}" for side in ("t2i","i2t")]
    grounded = ("right","random","possible","heat","centre","centre_random","peak")
    return [name, *pairs, *(f"{100*g[k]:.1f}" for k in grounded)]

def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a random CLIP on four scenes")
    parser.add_argument("--only", nargs="*", default=["TERAN", *ROWS], help="rows to print")
    only,rows = parser.parse_args().only,[]
    with tempfile.TemporaryDirectory() as folder:
        if parser.parse_args().quick:
            draw_world(f"{folder}/scenes", counts=(4,4,4), workers=1)
            world,clip,only = Collection.open(f"{folder}/scenes").split("test"),save_random("clip", f"{folder}/clip"),list(ROWS)[-2:-1]
        else: world,clip = scenes("test"),ROOT/"runs/scenes-clip"
        if "TERAN" in only: rows.append(row("TERAN MrSw, regions", load_model(ROOT/"runs/scenes-teran-mrsw"), world))
        for name,options in ROWS.items():
            model = DualEncoder.from_pretrained(clip, device="cpu", cache_folder=None, **options) if name in only else None
            if model: rows.append(row(f"CLIP, {name}", model, world))
    print(f"{machine()}; {len(world)} images, {len(world.captions)} captions\n")
    print(markdown_table(COLUMNS, rows))

if __name__ == "__main__": main()
