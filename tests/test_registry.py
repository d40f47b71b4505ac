"""The registry: every entry fits, the documents of results are what it prints, and a workflow enters and compares its numbers."""
import json
import re

import pytest
from conftest import ROOT, play

from teran_nb.core import processes
from teran_nb.training.entries import read_entry, read_registry
from teran_nb.training.records import require_reproduced
from teran_nb.training.registry import fill_document

ENTRIES = sorted((ROOT / "results").rglob("*.json"))


def test_every_entry_fits():
    "Each file has the shape of an entry, and each folder is a table."
    assert ENTRIES
    for path in ENTRIES:
        for record in read_entry(path)["records"]:
            assert re.fullmatch(r"[0-9a-f]{7,40}\+?|not recorded", record["commit"]), f"{path}: commit {record['commit']}"
    for folder in {path.parent for path in ENTRIES}:
        assert folder.parent == ROOT / "results" and len(read_registry(folder)) == len(list(folder.glob("*.json")))


def test_results_are_what_the_registry_prints():
    printed = set()
    for document in (ROOT / "RESULTS.md", *ROOT.glob("results/*.md")):
        text = document.read_text(encoding="utf8")
        assert fill_document(text, ROOT / "results") == text, "run python -m teran_nb.training.registry RESULTS.md results/*.md"
        printed |= set(re.findall(r"<!-- results: \w+ (\w+)", text))
    assert printed == {path.parent.name for path in ENTRIES}  # no number lies there unseen


@pytest.mark.slow
def test_a_workflow_enters_and_compares(tmp_path, monkeypatch):
    "Two seeds are entered; the same row, trained again, agrees and changes no file; an entry that says something else is noticed."
    monkeypatch.setattr(environment, "git_commit_hash", lambda: "2adcbd9")  # a number of changed files is not entered
    about = {"rows": ["tern"], "epochs": 1, "grid": {}, "results": str(tmp_path / "results")}
    places = {"output": str(tmp_path / "runs"), "figures": str(tmp_path / "figures")}
    play("ablations", **about, **places, seeds=[0, 1])
    path = tmp_path / "results/tern.json"
    entry = read_entry(path)
    assert [record["seed"] for record in entry["records"]] == [0, 1] and "-p epochs 1" in entry["records"][0]["command"]
    assert all(record["seconds"] > 0 and record["threads"] == 1 for record in entry["records"])
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    again = play("ablations", **about, **places, check=True)
    compared = require_reproduced(again["table"], again["dataset"], about["results"])
    assert len(compared) > 5 and compared.inside.all() and before == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    for record in entry["records"]:
        record["metrics"]["t2i_ndcg_rouge"] = .999
    path.write_text(json.dumps(entry))
    with pytest.raises(ValueError, match="numbers lie where no further seed"):
        require_reproduced(again["table"], again["dataset"], about["results"])
