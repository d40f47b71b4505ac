"""A dual encoder beside TERAN on the drawn scenes: retrieval and grounding of both, by the same functions.

`python benchmarks/dual.py` prints a table in markdown (a few minutes of one core). It needs `runs/scenes-teran-mrsw` (the README's first command) and
`runs/scenes-clip` (`train_clip(scene_collection().train, "runs/scenes-clip")`, from teran_nb.zoo.small_models). `--results` enters the table in the registry.
"""
import argparse, os, shlex, sys, tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from common import machine
from lab.entries import enter
from teran_nb.core.show import markdown_table
from teran_nb.core.processes import environment
from teran_nb.training.datasets import load_data
from teran_nb.measure.results import Measured, Result
from teran_nb.training.runs import evaluate_runs
from teran_nb.zoo.small_models import ScratchConfig, toy_folder

OPTIONS = [
    {"dense": "kk"},
    {"dense": "kk", "words": "tokens"},
    {"dense": "none"},
    {"dense": "none", "words": "tokens"},
    {"dense": "value"},
    {"dense": "qq+kk"},
    {"dense": "qq"},
    {"dense": "none", "regions": "boxes"},
    {"dense": "none", "regions": "boxes", "boxes_by": "attention"},
    {"dense": "none", "regions": "windows"},
] # Ways to look at the CLIP
METRICS = ["t2i_r1","t2i_r10","i2t_r1","i2t_r10","grounding","grounding_random","grounding_possible","grounding_heat","pointing","pointing_random","pointing_heat"]


def measured(run, world, **options):
    "What one model reaches, with the scores of its heat maps."
    result = evaluate_runs(run, world, **options)
    here = environment(ScratchConfig().seed) # of the CLIP, which has no run that records it
    where = ", ".join(str(here[name]) for name in ("platform","device_name","device","cores")) + " cores"
    known = {name: value for name,value in result.about.items() if value != "unknown"}
    return Measured(result.metrics | result.grounding.kinds.lines["all"][0].metrics, {"seed": here["seed"], "machine": where, "torch": here["torch"]} | known)

def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a random CLIP on the smallest scenes, looked at in one way")
    parser.add_argument("--results", default="", help="folder of a table in the registry, such as results/dual")
    given = parser.parse_args()
    data = load_data("scenes:tiny" if given.quick else "scenes")
    with tempfile.TemporaryDirectory() as folder:
        if given.quick: table = Result.of(measured(toy_folder("clip", f"{folder}/clip"), data.test, dual=OPTIONS[-1]))
        else:
            looks = [measured(ROOT/"runs/scenes-clip", data.test, dual=options) for options in OPTIONS]
            table = Result.of(measured(ROOT/"runs/scenes-teran-mrsw", data.test), *looks)
    print(f"{machine()}; {len(data.test)} images, {len(data.test.captions)} captions\n")
    shown = table.table(METRICS)
    print(markdown_table(shown.columns, shown.values))
    threads = os.environ.get("OMP_NUM_THREADS")
    command = shlex.join(["python","benchmarks/dual.py",*sys.argv[1:]])
    command = f"OMP_NUM_THREADS={threads} {command}" if threads else command
    if given.results: enter(table, given.results, command)

if __name__ == "__main__": main()
