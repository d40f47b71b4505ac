"""Every committed number is a file in `results/`, with what is needed to measure it again: read, entered, and compared with a repetition."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from scipy.special import stdtrit

from teran_nb.core.config import one_of
from teran_nb.core.files import digest, locked, project_path, read_json, write_json
from teran_nb.data.collection import Collection
from teran_nb.measure.evaluation import read_tested
from teran_nb.measure.papers import PUBLISHED
from teran_nb.measure.results import OF_SEED, OWN_LINE, Measured, Result, read_result
from teran_nb.training.datasets import load_data
from teran_nb.training.runs import Run

# the files

NOT_RECORDED = "not recorded"
_Number = int|float
_Amount = Annotated[_Number, Field(ge=0)]|str
_FRACTION = re.compile(r"[ti]2[ti]_r\d+|mean_recall|([ti]2[ti]_)?ndcg(_\w+)?|noun|colour|size|number|(grounding|pointing|pairs)(_\w+)?")


class Record(BaseModel):
    "What one seed measured."
    model_config = ConfigDict(extra="forbid", strict=True)
    seed: int|str  # Seed of everything that is drawn at random; of an ensemble, such as `0 + 1`
    metrics: dict[str,float] = Field(min_length=1)  # In their own units: recalls, NDCG and grounding in [0,1], ranks from 1
    epochs: _Amount  # Epochs that were trained, or "not recorded"
    seconds: _Amount  # Seconds of training and validation, as they passed; of an ensemble, those of its first member
    commit: str  # Commit of the code that trained; with `+` where files were changed
    versions: dict[str,str]  # Versions of Python and of packages
    machine: str  # System, processor and device
    threads: _Amount  # Threads of torch on a CPU
    data: str  # `data_fingerprint`
    command: str  # The shell command that measures it

    @field_validator("metrics")
    @classmethod
    def _fractions(cls, metrics):
        for name, value in metrics.items():
            if _FRACTION.fullmatch(name) and not 0 <= value <= 1:
                raise ValueError(f"{name} is {value}; write a fraction between 0 and 1, not a percentage")
        return metrics


class Entry(BaseModel):
    "One row of a table."
    model_config = ConfigDict(extra="forbid", strict=True)
    row: str  # A named recipe, or a name of your own
    conditions: dict[str,Any]  # Those that all its records share: `protocol`, `candidates` and others
    records: list[Record] = Field(min_length=1)  # One a seed

    @model_validator(mode="after")
    def _consistent(self):
        missing = {"protocol","candidates"} - self.conditions.keys()
        if missing: raise ValueError(f"the conditions have no {min(missing)}")
        if not isinstance(self.conditions["protocol"], str): raise ValueError("the protocol is no text")
        seeds = [record.seed for record in self.records]
        for seed in seeds:
            if seeds.count(seed) > 1: raise ValueError(f"the seed {seed} occurs twice; keep one record of it")
        different = different_data(self.records, self.conditions["protocol"])
        if different: raise ValueError(f"the records are of different data ({', '.join(sorted(different))}); put them into two folders")
        return self


def different_data(
    records: Iterable[Record],
    protocol: str,  # Protocol of all of them
) -> set[str]:  # Fingerprints that cannot stand in one table; empty if all records are of the same data
    "Fingerprints of records that were measured on different data; drawn scenes may differ between machines."
    by_machine = {}
    for record in records:
        machine = record.machine if protocol.startswith("scenes-v") else ""
        if record.data != NOT_RECORDED: by_machine.setdefault(machine, set()).add(record.data)
    return set().union(*(fingerprints for fingerprints in by_machine.values() if len(fingerprints) > 1))


def _file_name(row): return re.sub(r"[^\w.+-]", "-", row) + ".json"


def entry_path(
    table: str|Path,  # Folder of one table, such as `results/main`
    row: str,  # Name of the row
) -> Path:  # There may be no such file yet
    "The file of a row."
    return project_path(table)/_file_name(row)


def _checked_entry(content, path):
    "Content of the right shape; otherwise the first fault is named (ValueError)."
    try: json.dumps(content, ensure_ascii=False).encode("utf8")
    except UnicodeEncodeError: raise ValueError(f"{path}: a text holds half of a character, which no file can; correct it") from None
    try: entry = Entry.model_validate(content)
    except ValidationError as e:
        fault = e.errors()[0]
        place = ".".join(map(str, fault["loc"])) or "Entry"
        raise ValueError(f"{path}: {place}: {fault['msg'][:200]}; CONTRIBUTING.md says what an entry holds") from None
    if path.name != _file_name(entry.row): raise ValueError(f"{path}: the row is {entry.row!r}; name the file {_file_name(entry.row)}")
    return entry


def read_entry(
    path: str|Path,  # A file of the registry
) -> Entry:
    "One row of a table, with all its seeds."
    return _checked_entry(read_json(Path(path), dict, "CONTRIBUTING.md says what an entry holds"), Path(path))


def read_table(
    table: str|Path,  # Folder of one table, such as `results/main`
    rows: Iterable[str] = (),  # Rows, in this order; all of them when empty
) -> Result:  # A line for each row, the rows of papers first
    "Read a table of the registry."
    folder = project_path(table)
    entries = [read_entry(path) for path in sorted(folder.glob("*.json"))]
    if not entries: raise FileNotFoundError(f"no entry in {folder}; name a folder with .json files of the registry")
    by_row = {entry.row: entry for entry in entries}
    of_papers = [row for row in PUBLISHED if row in by_row]
    order = rows or dict.fromkeys([*of_papers,*by_row])
    return Result({row: _results_of(by_row[one_of(row, by_row, f"row of {folder}")]) for row in order})


def _results_of(entry):
    "The results of a row, by its seeds."
    results = []
    for record in sorted(entry.records, key=lambda record: (str(type(record.seed)),record.seed)):
        about = {"model": entry.row} | entry.conditions | record.model_dump(exclude={"metrics","epochs","versions"})
        about |= {"epochs trained": record.epochs, "torch": record.versions.get("torch", NOT_RECORDED)}
        results.append(Measured(record.metrics, about))
    return tuple(results)


# what was measured

def data_fingerprint(
    collection: Collection,  # All splits
) -> str:  # 16 hexadecimal digits
    "Checksum of captions, splits and region features."
    sums, captions = collection.features.manifest["sha256"], collection.captions
    of_captions = [captions.texts,captions.image_of.tolist(),captions.image_ids,captions.splits]
    of_features = {part: sums.get(part) for part in ("offsets","values","boxes")}
    of_features |= {part: checksum for part, checksum in sums.items() if part == "views" or part.isdecimal()}  # several stores have numbers
    return digest([of_captions,of_features])[:16]


def read_measured(
    paths: Iterable[str|Path],  # Tables that `Result.save` wrote as JSON, or folders of tested runs
    rows: Iterable[str] = (),  # Rows to read; all of them when empty
) -> Result:  # `values(row, "run")` are the folders of the runs
    "What a workflow has saved, or what runs have measured on their test split."
    lines = {}
    for path in map(project_path, paths):
        for result in _saved_table(path) if path.is_file() else _saved_run(path):
            lines.setdefault(result.about["model"], []).append(result)
    return Result({one_of(row, lines, "row of the runs"): tuple(lines[row]) for row in rows or lines})


def _saved_table(path):
    "Results of a file; their runs lie in the same project."
    results = []
    for row, seeds in read_result(path).lines.items():
        for result in seeds:
            about = result.about | {"model": row}
            if about.get("run"): about["run"] = str(project_path(about["run"], path.parent))
            results.append(replace(result, about=about))
    return results


def _saved_run(run):
    "Results of a run: one for each row that it was tested as."
    files = sorted(run.glob("metrics*.json"))
    if not files: raise FileNotFoundError(f"no metrics.json or metrics-<row>.json in {run}; name a run that was tested, or a table's .json")
    trained = {"epochs": Run(run).recipe.train.epochs, "run": str(run)}
    results = []
    for path in files:
        measured = read_tested(path)
        metrics = {name: value for name, value in measured["metrics"].items() if value is not None}
        results.append(Measured(metrics, measured["about"] | trained))
    return results


_PACKAGES = ("python","teran_nb","torch","transformers","accelerate","numpy","pillow")


def record_of(
    result: Measured,  # Measurement of one seed; its condition `run` names the folder of its run
    command: str,  # The shell command that measures it
    fingerprint: str,  # As in `data_fingerprint`
) -> Record:
    "The record of one seed; without a run it has what the result says about itself."
    about = result.about
    run = project_path(about["run"]) if about.get("run") else None
    def recorded(name): return about.get(name) or NOT_RECORDED
    epochs, seconds = about.get("epochs trained", about.get("epochs", NOT_RECORDED)), about.get("seconds", NOT_RECORDED)
    machine, threads, versions = recorded("machine"), recorded("threads"), {"torch": recorded("torch")}
    if in_command := re.match(r"OMP_NUM_THREADS=(\d+) ", command): threads = int(in_command[1])
    if run and (run/"environment.json").is_file():
        environment = read_json(run/"environment.json", dict)
        machine = ", ".join(str(environment[name]) for name in ("platform","device_name","device","cores")) + " cores"
        threads = environment.get("threads") or threads
        versions = {name: environment[name] for name in _PACKAGES if name in environment}
    if run and (run/"log.jsonl").is_file():
        history = Run(run).history.epochs
        epochs, seconds = len(history), round(sum(epoch["seconds"] for epoch in history), 1)
    return Record(seed=about.get("seed", NOT_RECORDED), metrics=result.metrics, epochs=epochs, seconds=seconds, commit=recorded("commit"),
                  versions=versions, machine=machine, threads=threads, data=fingerprint, command=command)


def _fingerprints(results, data):
    "The fingerprint of the data of each result, by its place; a result without a run was measured on the data of those beside it."
    given = data_fingerprint(load_data(data)) if data else ""
    by_source, by_run = {}, {}
    for seeds in results.lines.values():
        for result in seeds:
            run = project_path(result.about.get("run") or ".")
            if given or not (run/"run.json").is_file(): continue
            key = json.dumps(Run(run).saved["data"])
            if key not in by_source: by_source[key] = data_fingerprint(Run(run).training_data())
            by_run[result.about["run"]] = by_source[key]
    beside = next(iter(by_source.values())) if len(by_source) == 1 else NOT_RECORDED
    def fingerprint_of(result): return given or by_run.get(result.about.get("run"), result.about.get("data", beside))
    return fingerprint_of


# entering

def enter(
    results: Result,  # `values(row, "run")` names folders of runs, where there are any
    table: str|Path,  # Folder of one table; made if it is not there
    command: str,  # The shell command that measures these numbers
    data: str = "",  # What they were measured on, as in `load_data`; by default what each run was trained on
) -> list[Path]:  # One file a row
    "Enter results in the registry; a seed that is entered again replaces the former one."
    fingerprint_of = _fingerprints(results, data)
    project_path(table).mkdir(parents=True, exist_ok=True)
    with locked(project_path(table)):
        entries = {}
        for row, seeds in results.lines.items():
            path = entry_path(table, row)
            stored = entries.get(path) or (read_entry(path) if path.is_file() else None)
            if stored and stored.row != row: raise ValueError(f"{path} is the file of the row {stored.row!r}; give the row {row!r} another name")
            conditions = stored.conditions if stored else _shared_conditions(seeds[0])
            records = {record.seed: record for record in stored.records} if stored else {}
            for result in seeds:
                _require_same(_shared_conditions(result), conditions, path)
                record = record_of(result, command, fingerprint_of(result))
                if re.search(r"\w\+", record.commit):
                    raise ValueError(f"{path}: seed {record.seed} was measured at commit {record.commit} with changed files, so others cannot repeat it; "
                                     "commit first, and run again into a new folder of runs")
                records[record.seed] = record
            content = {"row": row, "conditions": conditions, "records": [record.model_dump() for record in records.values()]}
            entries[path] = _checked_entry(json.loads(json.dumps(content)), path)
        for path, entry in entries.items(): write_json(path, entry.model_dump())
        return list(entries)


def _shared_conditions(result):
    "The conditions that all seeds of an entry share; the model is the entry's row."
    return {k: v for k, v in result.about.items() if k != "model" and k not in OF_SEED}


def _require_same(now, before, path):
    "Refuse a seed that was measured under other conditions; an empty condition is one that does not apply."
    for name in now | before:
        new, old = now.get(name) or "", before.get(name) or ""
        if name != "grid" and new != old:  # the runs of a grid have another seed
            raise ValueError(f"{path}: {name} is {str(old)[:80]!r} there and {str(new)[:80]!r} in what is entered; "
                             "enter it in another folder, or remove the file")


# comparing

def prediction_interval(
    values: Sequence|np.ndarray,  # One number a seed, two at least
    finest: float = 0.,  # Least distance of an end from the mean
) -> tuple[float,float]:  # Low and high end
    "99 % prediction interval of one more seed: mean ± t s sqrt(1 + 1/n)."
    values = np.asarray(values, dtype=float)
    if len(values) < 2: raise ValueError(f"{len(values)} seed gives no tolerance; enter at least two")
    half = stdtrit(len(values)-1, .995)*values.std(ddof=1)*(1 + 1/len(values))**.5
    half = max(float(half), finest)
    return float(values.mean()) - half,float(values.mean()) + half


_ROUNDING = 1e-9  # Largest difference of a number that was written and read


def compare_with_table(
    again: Result,  # Measured now
    table: str|Path,  # Folder of a table that has these rows
    data: str = "",  # As in `enter`
) -> pd.DataFrame:  # A row for each number: what the registry expects, what it is now, whether that is inside
    "Compare results with the registry: the same seed on the same machine to the digit, others within the spread."
    stored_table = read_table(table, again.lines)
    fingerprint_of = _fingerprints(again, data)
    rows = []
    for row, seeds in again.lines.items():
        entry = read_entry(entry_path(table, row))
        now_records = [record_of(result, "", fingerprint_of(result)) for result in seeds]
        _require_comparable(row, seeds[0], now_records, entry, table)
        count = re.match("[0-9,]+", entry.conditions["candidates"])  # of images, or of minimal pairs
        finest = 1/int(count[0].replace(",", "")) if count else 0.
        for metric in again.columns():
            values = [result.metrics[metric] for result in stored_table.lines[row] if metric in result.metrics]
            if not values: continue
            for record in now_records:
                now = record.metrics.get(metric, float("nan"))  # not measured now is outside
                before = _same_training(record, entry.records).get(metric)
                expected = "a further seed" if before is None else "the same digits"
                low, high = prediction_interval(values, finest=finest) if before is None else (before - _ROUNDING,before + _ROUNDING)
                rows.append({"model": row, "metric": metric, "seed": record.seed, "expected": expected,
                             "low": low, "high": high, "now": now, "inside": low <= now <= high})
    return pd.DataFrame(rows)


def _same_training(record, stored):
    "The stored metrics of the same seed, machine, number of threads and torch; empty if there are none."
    def key(r): return r.seed,r.machine,r.threads,r.versions.get("torch")
    if record.machine == NOT_RECORDED: return {}
    return next((before.metrics for before in stored if key(before) == key(record)), {})


def _require_comparable(row, result, records, entry, table):
    "Refuse a result under other conditions, or of other data, than the stored seeds."
    for name in (*OWN_LINE,"candidates","epochs"):
        now, before = result.about.get(name) or "", entry.conditions.get(name) or ""
        if now != before: raise ValueError(f"{row} cannot be compared with {table}: {name} is {now!r} now and {before!r} there")
    ours = {record.data for record in records}
    if different := different_data([*records,*entry.records], entry.conditions["protocol"]) - ours:
        raise ValueError(f"{row} cannot be compared with {table}: the data are {', '.join(ours)} now and {', '.join(different)} there")
