"""Damaged, foreign and hostile files: every reader gives what the file holds or one clear sentence.

`python tests/campaigns/mutate.py --seed 0 --cases 13000` prints a table and ends with status 1 unless its last four columns are zero.
"""
import gzip
import io
import json
import os
import pickle
import random
import re
import shutil
import subprocess
import warnings
import zipfile
from copy import deepcopy
from functools import cache
from pathlib import Path

import numpy as np
from common import Table, arguments, describe, in_process, is_clear, work_folder
from readers import READERS

from teran_nb.core.files import digest

SPECIAL = [None, True, -1, 0, 1e308, float("nan"), float("inf"), 2**31, 2**63, 10**30, 10**7, "", "x", "x" * 200_000, "\ud800", "../../etc/passwd",
           "/etc/passwd", "a\0b", "<script>", [], [[]], {}, {"": None}, [1, 2, 3], -5.5, "NaN", "1e999", "\u202e", "日本"]
NUMBERS = [b"-1", b"0", b"1e999", b"nan", b"NaN", b"-inf", b"99999999999999999999", b"1" * 5000, b"0x10", b"1_0", b"", b"2147483648", b"-0.0", b"1e-400"]


class Canary:
    "A pickle that makes a file when it is loaded."

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def bit_flip(data, rng, _):
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def cut(data, rng, _):
    return data[:rng.randrange(len(data))]


def insert(data, rng, _):
    i = rng.randrange(len(data))
    return data[:i] + rng.choice((rng.randbytes(rng.randint(1, 64)), b"\0" * 16, b'"', b"\n", b"\xff\xfe", b"\r", b"\x80")) + data[i:]


def remove(data, rng, _):
    i = rng.randrange(len(data))
    return data[:i] + data[i + rng.randint(1, 64):]


def repeat(data, rng, _):
    i = rng.randrange(len(data))
    piece = data[i:i + rng.randint(1, 200)]
    return data[:i] + piece * rng.randint(2, 5) + data[i + len(piece):]


def swap_halves(data, rng, _):
    i = rng.randrange(len(data))
    return data[i:] + data[:i]


def zeros(data, rng, _):
    i = rng.randrange(len(data))
    n = rng.randint(1, 512)
    return data[:i] + b"\0" * len(data[i:i + n]) + data[i + n:]


def number(data, rng, _):
    "Another number in a text."
    places = list(re.finditer(rb"-?\d+(\.\d+)?", data[:200_000]))
    if not places:
        return bit_flip(data, rng, _)
    m = rng.choice(places)
    return data[:m.start()] + rng.choice(NUMBERS) + data[m.end():]


def swap_lines(data, rng, _):
    "Two fields or lines change places."
    separator = rng.choice([s for s in (b"\n", b",", b"\t", b" ") if s in data] or [b""])
    if not separator:
        return bit_flip(data, rng, _)
    fields = data.split(separator)
    i, j = rng.randrange(len(fields)), rng.randrange(len(fields))
    fields[i], fields[j] = fields[j], fields[i]
    return separator.join(fields)


@cache
def bombs():
    "Small files that unpack to hundreds of megabytes, or to endless text."
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as z:
        z.writestr("features.npy", bytes(150_000_000))
    laughs = b"a: &a [x,x]\n" + b"".join(b"%c: &%c [*%c,*%c,*%c,*%c,*%c]\n" % ((c, c, *[c - 1] * 5)) for c in range(98, 110)) + b"feature: *m\n"
    return archive.getvalue(), gzip.compress(bytes(30_000_000), 1) * 10, laughs  # ten members of one file


def foreign(data, rng, canary):
    "The content of another kind of file: empty, garbage, a pickle with code, a bomb, deep nesting."
    archive, objects, array = io.BytesIO(), io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(archive, "w") as z:
        z.writestr("archive/data.pkl", pickle.dumps(Canary(canary), 2))
        z.writestr("archive/version", "3\n")
    np.savez(objects, features=np.array([Canary(canary)], dtype=object), x=np.array([Canary(canary)], dtype=object))
    np.save(array, np.array([Canary(canary)], dtype=object))
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(" + str(canary).encode() + b") (w) file closefile showpage\n"
    yaml = b"feature: !!python/object/apply:os.mkdir ['" + str(canary).encode() + b"']"
    return rng.choice((b"", b"\n", rng.randbytes(500), b"[" * 200_000, b'{"a":' * 100_000, b"{}", b"[]", b"null", b'"text"', b"3", b"a: " * 5000,
                       pickle.dumps(Canary(canary)), archive.getvalue(), objects.getvalue(), array.getvalue(), yaml, postscript, *bombs(),
                       b"<html>404 Not Found</html>", b"version https://git-lfs.github.com/spec/v1\n", data * 3))


def nodes(value, path=()):
    "Places of all values in JSON."
    yield path
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from nodes(value[key], (*path, key))


def change_json(data, rng, _):
    "Another value, a missing one, one that stands twice, a name of a field that is another's, in JSON; with a right checksum of itself."
    try:
        value = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data.splitlines()[0] if data.count(b"\n{") else data)
    except ValueError:
        return bit_flip(data, rng, _)
    for _ in range(rng.choice((1, 1, 2))):
        *path, last = rng.choice([p for p in nodes(value) if p] or [None]) or [None]
        if last is None:
            return json.dumps(rng.choice(SPECIAL)).encode()
        parent = value
        for key in path:
            parent = parent[key]
        kind = rng.randrange(6)
        if kind == 0:
            del parent[last]
        elif kind == 1 and isinstance(parent, list):
            parent.append(parent[last])
        elif kind == 2 and isinstance(parent, dict):
            other = rng.choice(list(parent))
            parent[last], parent[other] = parent[other], parent[last]
        else:
            parent[last] = deepcopy(rng.choice(SPECIAL))  # a list of it may be changed again
    if isinstance(value, dict) and "self" in value:
        value["self"] = digest({k: v for k, v in value.items() if k != "self"})
    changed = json.dumps(value).encode()
    return gzip.compress(changed) if data[:2] == b"\x1f\x8b" else changed


BYTES = (bit_flip, bit_flip, cut, insert, remove, repeat, swap_halves, zeros, number, number, swap_lines, foreign)


def replace_file(path, rng):
    "No file at all, but something else of that name."
    path.unlink()
    kind = rng.choice(("gone", "folder", "pipe", "link"))
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/dev/zero")
    return kind


def damage(folder, reader, rng, canary):
    "Damage one file; a few words about how."
    files = sorted(p for p in folder.glob(reader.only if "/" in reader.only or reader.only != "*" else "**/*") if p.is_file())
    path = rng.choice(files)
    if rng.random() < 0.04:
        return f"{path.name}: {replace_file(path, rng)}"
    data = path.read_bytes()
    used = data.rstrip(b"\0")
    if reader.threads and used and len(data) - len(used) > 4096:  # an engine's file with room for more; its length stays half of the time
        how = rng.choice(BYTES)
        changed = how(used, rng, canary)
        path.write_bytes((changed + bytes(len(data) - len(used)))[:len(data) if rng.random() < 0.5 else None].ljust(len(data), b"\0"))
        return f"{path.name}: {how.__name__} in what is used"
    is_json = path.suffix in (".json", ".jsonl") or path.name.endswith(".json.gz")
    how = change_json if is_json and rng.random() < 0.6 else rng.choice(BYTES)
    path.write_bytes(how(data, rng, canary) if data else rng.randbytes(9))
    return f"{path.name}: {how.__name__}" + (", sealed anew" if how is change_json and is_sealed(path) else "")


def is_sealed(path):
    "Whether a file's own checksum is right after another value was put into it: then it says another thing, and no reader can know."
    if path.name not in ("manifest.json", "collection.json", "state.json"):
        return False
    value = json.loads(path.read_bytes())
    return type(value) is dict and value.pop("self", None) == digest(value)


def stamp(folder):
    "What tells whether files were lost or changed."
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() and not p.is_symlink() else b"" for p in sorted(folder.rglob("*"))}


def attempt(reader, good, expected, work, seed):
    "One case: damage a copy, read it, judge what comes."
    rng = random.Random(seed)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    if reader.threads:  # an engine's files are hundreds of megabytes of holes
        subprocess.run(["cp", "-r", "--sparse=always", str(good), str(work / "files")], check=True)
    else:
        shutil.copytree(good, work / "files")
    canary = work / "canary"
    what = f"case {seed}: {damage(work / 'files', reader, rng, canary)}"
    before = None if reader.writes else stamp(work / "files")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = reader.read(work / "files")
            is_right = value == expected if reader.sealed else reader.holds(value)
            outcome = "right" if is_right or what.endswith("sealed anew") else "silent"
    except BaseException as e:  # a panic of an engine is no Exception
        outcome = "clear error" if is_clear(e, [p.name for p in (work / "files").rglob("*")] + [str(work)]) else "raw"
        what += f": {describe(e)}"
    if canary.exists():
        outcome = "executed"
    elif before is not None and stamp(work / "files") != before:
        outcome = "lost"
    return outcome, what


def campaign(seed, cases, only="", limit=0):
    "The table of so many cases, the same number for each reader."
    readers, table = [r for r in READERS if only in r.name], Table()
    with work_folder() as folder:
        folder = Path(folder)
        good, expected = {}, {}

        def begin(reader):
            "Make the files of a reader and read them; what a sealed one holds."
            good[reader.name].mkdir(parents=True)
            reader.make(good[reader.name])
            shutil.copytree(good[reader.name], folder / "work" / "files")
            value = reader.read(folder / "work" / "files")
            assert reader.sealed or reader.holds(value), f"{reader.name} is not right before it is damaged"
            shutil.rmtree(folder / "work")
            return "right", value if reader.sealed else None

        for i, reader in enumerate(readers):
            good[reader.name] = folder / f"{i}" / "files"
            if reader.threads:
                (_, (outcome, expected[reader.name])), = in_process(begin, [reader])
                assert outcome == "right", f"{reader.name}: {expected[reader.name]}"
            else:
                expected[reader.name] = begin(reader)[1]

        def run(job):
            reader, number = job
            return attempt(reader, good[reader.name], expected[reader.name], folder / "work", f"{seed}-{reader.name}-{number}")

        bombs()
        each = -(-cases // len(readers))
        jobs = [(reader, n) for n in range(each) for reader in readers]
        for (reader, n), (outcome, what) in in_process(run, jobs, limit=limit):
            table.add(reader.name, outcome, what if what.startswith("case") else f"case {seed}-{reader.name}-{n}: {what}")
    return table


if __name__ == "__main__":
    a = arguments(__doc__.splitlines()[0], 1000)
    campaign(a.seed, a.cases, a.only, a.seconds).end()
