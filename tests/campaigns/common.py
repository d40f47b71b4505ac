"What the campaigns share: the table of outcomes, small files of every kind, and readers that run in a process of their own."
import argparse
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # `lab` is not installed
COLUMNS = ("tried", "right", "clear error", "raw", "silent", "executed", "lost")
FORBIDDEN = COLUMNS[3:]
CLEAR = (ValueError, FileNotFoundError, FileExistsError, PermissionError, RuntimeError, ImportError, OSError, FloatingPointError)


class Table:
    "Outcomes by target; the first examples of what must not happen."

    def __init__(self):
        self.counts, self.examples = {}, []

    def add(self, target, outcome, what=""):
        row = self.counts.setdefault(target, Counter())
        row["tried"] += 1
        row[outcome] += 1
        if outcome in FORBIDDEN:
            self.examples.append(f"{outcome}: {target}: {what}")

    def faults(self):
        return sum(row[k] for row in self.counts.values() for k in FORBIDDEN)

    def show(self, examples=20):
        total = sum(self.counts.values(), Counter())
        width = max(map(len, [*self.counts, "all"]))
        print(f"| {'target':{width}} | " + " | ".join(COLUMNS) + " |")
        print(f"|{'-' * (width + 2)}|" + "|".join("-" * (len(c) + 1) + ":" for c in COLUMNS) + "|")
        for name, row in [*self.counts.items(), ("all", total)]:
            print(f"| {name:{width}} | " + " | ".join(f"{row[c]:>{len(c)},}" for c in COLUMNS) + " |")
        for example in self.examples[:examples]:
            print(example[:1500])

    def end(self):
        self.show()
        sys.exit(self.faults() > 0)


def arguments(description, cases):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=cases)
    parser.add_argument("--seconds", type=float, default=0, help="begin no further case after so long; 0 for no limit")
    parser.add_argument("--only", default="", help="targets whose name contains this")
    return parser.parse_args()


def work_folder():
    "A temporary folder, in memory where there is enough of it: a killed process and a damaged file are the same there, and nothing waits for a disk."
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2**30
    return tempfile.TemporaryDirectory(dir=memory if roomy else None)


def rounds(count, names, limit=0):
    "Numbers and names of cases, all names in each round; none after `limit` seconds."
    end = time.time() + limit
    for n in range(count):
        for name in names:
            if limit and time.time() > end:
                return
            yield n, name


def is_clear(error, names):
    "Whether an error is one sentence of ours: a plain class, the name of a file or folder, no text of torch or csv."
    text = str(error)
    foreign = ("weights_only=", "Traceback", "\n")
    plain = type(error) in CLEAR or isinstance(error, OSError) and error.errno is not None
    return plain and any(name in text for name in names) and not any(f in text for f in foreign) and len(text) < 1200


def describe(error):
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {str(error)[:300]} ({Path(place.filename).name}:{place.lineno})"


def cpu_seconds(pid):
    "CPU time of a process, so that a machine with much other work does not look like a reader that hangs."
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def in_process(run, jobs, seconds=30, memory=2 * 2**30, limit=0):
    """Outcomes `(outcome, what)` of `run(job)` for every job, in a child process that is replaced when it dies, wants too much memory,
    computes for so many seconds without an outcome, or computes nothing at all for as long. It begins no job after `limit` seconds, where there is one."""
    jobs, until = list(jobs), time.time() + limit if limit else 0
    done = 0
    while done < len(jobs):
        reader, writer = os.pipe()
        sys.stdout.flush()
        child = os.fork()
        if not child:
            os.close(reader)
            _child(run, jobs[done:], writer, memory, until)
        os.close(writer)
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            buffer, reason = b"", ""
            begun, used, moved = 0, 0, time.time()
            while True:
                if not select.select([pipe], [], [], 1)[0]:
                    if cpu_seconds(child) > used:
                        used, moved = cpu_seconds(child), time.time()
                    if used - begun < seconds and time.time() - moved < seconds:
                        continue
                    reason = f"no end after {seconds} s"
                    os.kill(child, signal.SIGKILL)
                    break
                data = pipe.read(65536)
                if not data:
                    break
                begun, moved = cpu_seconds(child), time.time()
                buffer += data
                *lines, buffer = buffer.split(b"\n")
                for line in lines:
                    yield jobs[done], tuple(json.loads(line))
                    done += 1
        status = os.waitpid(child, 0)[1]
        if until and not status and not reason:
            return
        if done < len(jobs):
            yield jobs[done], ("raw", reason or f"ended the process, status {status}")
            done += 1


def be_quiet():
    "Let this process print nothing, the libraries below Python neither."
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)


def _child(run, jobs, writer, memory, until):
    import resource
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + memory
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    be_quiet()
    for job in jobs:
        if until and time.time() > until:
            break
        try:
            outcome = run(job)
        except BaseException:
            os._exit(1)  # and not up through the frames of the parent, which would remove its folders
        os.write(writer, json.dumps(outcome).encode() + b"\n")
    os._exit(0)


def wait_for(condition, seconds=120):
    end = time.time() + seconds
    while not condition():
        if time.time() > end:
            raise TimeoutError("it did not happen")
        time.sleep(0.005)
