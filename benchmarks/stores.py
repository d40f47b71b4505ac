"""How long a large store of features and a large collection take to open.

`python benchmarks/stores.py` writes a million images with one region of four numbers each and a table of
captions with links, and prints a table in markdown: CPU and wall seconds of opening them, each in a fresh process, as a worker of a data loader does. The features are tiny, because opening reads none of them. With `--against FOLDER`, a checkout of
another commit opens the same files, as far as it can (`git worktree add FOLDER COMMIT`).
"""
import argparse, os, subprocess, sys, tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
from benchmarks.common import machine
from teran_nb.core.show import markdown_table
from teran_nb.data.captions import Captions, Link
from teran_nb.data.features import FeatureWriter

OPENINGS = { # what is opened, and the lines that do it in a fresh process
    "features, first image by its number": "from teran_nb.data.features import Features; begin(); Features(folder/'features')[0]",
    "features, last image by its name": "from teran_nb.data.features import Features; begin(); Features(folder/'features')[name]",
    "collection without captions": "from teran_nb.data.collection import Collection; begin(); Collection.open(folder/'plain')",
    "captions with links": "from teran_nb.data.caption_files import read_captions; begin(); read_captions(folder/'captions.json')",
}
CODE = """import sys, time
from pathlib import Path
folder,name,clock = Path(sys.argv[1]),sys.argv[2],[]
def begin(): clock[:] = time.perf_counter(),time.process_time()
{}
print(time.perf_counter() - clock[0], time.process_time() - clock[1])"""

def write_features(folder, names):
    "One region of four numbers for each image."
    values,box = np.ones((1,4), np.float16),np.float32([[0,0,1,1]])
    with FeatureWriter(folder, "tiny", 4) as writer:
        for name in names: writer.add(name, values, box, (2,2))

def write_captions(file, count, per_image=5):
    "Captions with three links and four boxes each."
    boxes = [((1.5,2.,30.,40.),),((5.,6.5,70.,80.),(5.,6.,7.,8.)),((1.,2.,3.,4.25),)]
    links = [tuple(Link(2+4*j, 5+4*j, "noun", boxes[j]) for j in range(3))]*count
    texts = [f"a red kite flies above the small house number {i}" for i in range(count)]
    images = -(-count//per_image)
    Captions(texts, np.arange(count)//per_image, [f"{i:09}" for i in range(images)], np.full((images,2), 100.), ["train"]*images, links).save(file)

def write_all(folder, names):
    "Everything that is opened."
    folder.mkdir(exist_ok=True)
    write_features(folder/"features", names)
    (folder/"plain").mkdir()
    (folder/"plain/features").symlink_to("../features")
    Captions([], [], names).save(folder/"plain/captions.json")
    write_captions(folder/"captions.json", len(names))

def opened(code, folder, name, root, rounds):
    "Median wall and CPU seconds of opening in a fresh process; NaN where the code in `root` cannot."
    command,environment = [sys.executable, "-c", CODE.format(code), str(folder), name],os.environ | {"PYTHONPATH": str(root)}
    runs = [subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root) for _ in range(rounds)]
    return np.median([list(map(float, run.stdout.split())) if run.returncode == 0 else (np.nan,np.nan) for run in runs], axis=0)

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--images", type=int, default=1_000_000, help="images of the store, and captions of the table")
    p.add_argument("--rounds", type=int, default=3, help="openings of each, of which the median is printed")
    p.add_argument("--keep", default="", help="folder for the files, which are then used again")
    p.add_argument("--only", default="", help="open only what has this word in its name")
    p.add_argument("--against", default="", help="checkout of another commit")
    p.add_argument("--quick", action="store_true", help="few images, only to see that it runs")
    a = p.parse_args()
    if a.quick: a.images,a.rounds = 300,1
    with tempfile.TemporaryDirectory() as tmp:
        folder,names = Path(a.keep or tmp),[f"some/folder/{i:012}" for i in range(a.images)]
        if not (folder/"captions.json").is_file(): write_all(folder, names)
        roots = {"": Path(__file__).resolve().parents[1]} | ({f", {Path(a.against).name}": Path(a.against).resolve()} if a.against else {})
        columns,rows = [f"{clock} s{where}" for where in roots for clock in ("wall","CPU")],[]
        for what,code in OPENINGS.items():
            if a.only not in what: continue
            seconds_of = [opened(code, folder, names[-1], root, a.rounds) for root in roots.values()]
            rows.append((what, *["-" if np.isnan(value) else f"{value:.2f}" for pair in seconds_of for value in pair]))
        print(f"{machine()}; {a.images:,} images or captions, median of {a.rounds} rounds\n")
        print(markdown_table(["opened",*columns], rows))

if __name__ == "__main__": main()
