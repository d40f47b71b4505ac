"""Speed and memory of `teran_nb.photos.extraction.extract_folder` with windows, on photographs.

`python benchmarks/extract.py [folder]` prints a table in markdown: photographs a second with one process and with several, per core, the CPU time of a
photograph (which a loaded machine changes less than the clock), and the peak memory of the parent and of its largest process. Without a folder it draws
its own pictures. Beside it stands a naive reference in the same process: the same descriptors one box at a time, cut from the picture as it lies on disk.
Memory is `ru_maxrss` (Linux, macOS); the load of the machine is printed, for what others run takes its share of the clock.
"""
import argparse, os, resource, subprocess, sys, tempfile, time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from PIL import Image
from teran_nb.core.show import markdown_table
from teran_nb.scenes.descriptors import describe, windows
from teran_nb.data.pictures import find_pictures
from teran_nb.photos.extraction import extract_folder
from teran_nb.photos.extractors import build_extractor

def pictures(folder, count, side):
    "Noisy pictures of our own, as JPEG."
    for i in range(count): Image.effect_noise((side,side), 10 + i % 90).convert("RGB").save(folder/f"{i:05}.jpg")

def some(folder, count, out):
    "Links to the first pictures of a folder; how many there are."
    for key,path in list(find_pictures(folder).items())[:count or None]:
        (out/key).parent.mkdir(parents=True, exist_ok=True)
        (out/f"{key}{path.suffix}").symlink_to(path.resolve())
    return len(find_pictures(out))

def naive(folder, count=20):
    "CPU milliseconds of a photograph, one box at a time."
    paths,start = list(find_pictures(folder).values())[:count],time.process_time()
    for p in paths:
        im = Image.open(p)
        for box in windows(im.size): describe(im, box[None])
    return 1e3*(time.process_time() - start)/len(paths)

def measure(folder, workers):
    "One run in a fresh process; clock and CPU seconds, megabytes of the parent and of its largest child."
    code = "import sys; sys.path[:0] = sys.argv[5:]; from benchmarks.extract import run; run(*sys.argv[1:4])"
    with tempfile.TemporaryDirectory() as tmp:
        root = str(Path(__file__).resolve().parents[1])
        done = subprocess.run([sys.executable, "-c", code, str(folder), f"{tmp}/store", str(workers), "", root], stdout=subprocess.PIPE, text=True, check=True)
    return [float(v) for v in done.stdout.split()]

def run(folder, store, workers):
    report = extract_folder(folder, build_extractor("windows"), store, workers=int(workers), show_progress_bar=False)
    me,child = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    unit = 2**20 if sys.platform == "darwin" else 2**10
    print(report.images, report.seconds, sum(r.ru_utime + r.ru_stime for r in (me,child)), me.ru_maxrss/unit, child.ru_maxrss/unit)

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", nargs="?", help="photographs; pictures of our own by default")
    p.add_argument("--count", type=int, default=0, help="how many of them; all by default")
    p.add_argument("--workers", type=int, nargs="+", default=[1,2], help="numbers of processes to compare")
    p.add_argument("--quick", action="store_true", help="a few small pictures, only to see that it runs")
    a = p.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp)/"pictures"
        folder.mkdir()
        if a.folder: count = some(a.folder, a.count, folder)
        else: pictures(folder, count := a.count or (30 if a.quick else 500), 64 if a.quick else 224)
        rows,said = [],[]
        for workers in a.workers:
            load = os.getloadavg()[0]
            n,clock,cpu,parent,child = measure(folder, workers)
            cores = min(workers, os.cpu_count())
            rows.append((workers, f"{n/clock:.1f}", f"{n/clock/cores:.1f}", f"{1e3*cpu/n:.1f}", f"{parent:.0f}", f"{child:.0f}" if workers > 1 else "-", f"{load:.1f}"))
            said.append(f"{workers} process{'es' if workers > 1 else ''} on {cores} core{'s' if cores > 1 else ''}: {n/clock:.1f} photographs a second, {n/clock/cores:.1f} per core; "
                        f"peak memory at most {parent + (workers*child if workers > 1 else 0):,.0f} MB" + (f" ({parent:.0f} and {workers} times {child:.0f})" if workers > 1 else ""))
        print(f"{count:,} pictures, windows of {build_extractor('windows').name}, {os.cpu_count()} cores\n")
        print(markdown_table(["processes","photographs/s","per core","CPU ms each","peak MB, parent","peak MB, largest child","load before"], rows))
        print("\n" + "\n".join(said))
        print(f"\nOne box at a time: {naive(folder):.1f} CPU ms a picture")

if __name__ == "__main__": main()
