"""The registry: every entry fits, the documents of results are what it prints, and what a workflow saves can be entered and compared."""
import json
import re
import shlex
from argparse import Namespace
from dataclasses import replace

import nbformat
import numpy as np
import pytest
import yaml
from conftest import ROOT, play, toy_result

from lab.entries import (
    NOT_RECORDED, compare_with_table, data_fingerprint, different_data, enter, entry_path, prediction_interval, read_entry, read_measured, read_table)
from lab.registry import fill_document, fill_documents, main, registry_table, without_contexts, workflow_command
from teran_nb.core import processes
from teran_nb.core.files import write_json
from teran_nb.data.captions import Captions
from teran_nb.data.collection import Collection, join_collections
from teran_nb.data.features import Features, FeatureWriter
from teran_nb.measure.results import Measured, Result
from teran_nb.training.compare import compare
from teran_nb.training.datasets import load_data
from teran_nb.training.recipe import _full_name, recipe, recipe_names
from teran_nb.training.runs import _record

ENTRIES = sorted((ROOT / "results").rglob("*.json"))


# what is committed

def test_every_entry_fits():
    "Each file has the shape of an entry, and each folder is a table."
    assert ENTRIES
    for path in ENTRIES:
        for record in read_entry(path).records:
            for commit in record.commit.split(" + "):  # an average names those of its members
                assert re.fullmatch(r"[0-9a-f]{7,40}\+?|not recorded", commit), f"{path}: commit {record.commit}"
    for folder in {path.parent for path in ENTRIES}:
        assert folder.parent == ROOT / "results" and len(read_table(folder)) == len(list(folder.glob("*.json")))


def test_results_are_what_the_registry_prints():
    printed = set()
    for document in (ROOT / "RESULTS.md", *ROOT.glob("results/*.md")):
        text = document.read_text(encoding="utf8")
        assert fill_document(text, ROOT / "results") == text, "run python -m lab.registry print"
        printed |= set(re.findall(r"<!-- results: \w+ (\w+)", text))
    assert printed == {path.parent.name for path in ENTRIES}  # no number lies there unseen


def parameters_of(workflow):
    "The names in the cell of parameters of a workflow."
    cells = nbformat.read(ROOT / "nbs" / f"{workflow}.ipynb", as_version=4).cells
    cell = next(cell for cell in cells if "parameters" in cell.metadata.get("tags", []))
    return set(re.findall(r"^(\w+) *=", cell.source, re.M))


def test_every_command_can_be_typed():
    "What measures a committed number is a command of today: a workflow with parameters that it has, or a program that is here."
    commands = {record.command for path in ENTRIES for record in read_entry(path).records} - {NOT_RECORDED}
    assert len(commands) > 30
    ci = set(re.findall(r"^OMP_NUM_THREADS=1 (?:papermill|python) .*$", (ROOT / ".ci" / "run").read_text(encoding="utf8"), re.M))
    assert len(ci) == 2
    commands |= ci
    for command in commands:
        words = [word for word in shlex.split(command) if not word.startswith("OMP_NUM_THREADS=")]
        if words[:2] == ["python", "-m"]:
            assert (ROOT / (words[2].replace(".", "/") + ".py")).is_file() and words[2] == "lab.registry" and words[3] in ("enter", "check"), command
            continue
        assert (ROOT / words[1]).is_file(), command
        if words[0] != "papermill":
            continue
        typed = {}
        for option, value, text in zip(words[3:], words[4:], words[5:] + [""]):
            if option == "-p":
                typed[value] = text
            if option == "-y":
                typed |= yaml.safe_load(value)
        unknown = typed.keys() - parameters_of(words[1].removeprefix("nbs/").removesuffix(".ipynb"))
        assert not unknown, f"{command} names {unknown}"
        for row in [*typed.get("rows", ()), *typed.get("models", ()), *typed.get("varied", ())]:
            assert row in recipe_names(), command
        trains = words[1] in ("nbs/train.ipynb", "nbs/compare.ipynb", "nbs/ablations.ipynb")
        fields = ({k: v for k, v in typed.get("options", {}).items() if k != "epochs"} if trains else {}) | {name: values[0] for name, values in typed.get("grid", {}).items()}
        fields |= {name: None for varied in typed.get("varied", {}).values() for names in varied for name in names.split(", ")}
        of_scale = recipe(scale=typed["scale"]) if "scale" in typed else recipe()
        for field, value in fields.items():
            of_scale.change(**{field: of_scale.fields()[_full_name(field)] if value is None else value})


# entries

CONDITIONS = {"protocol": "kites test", "candidates": "100 images x 500 captions", "epochs": 4}


def record(seed, recall, **changes):
    return {"seed": seed, "metrics": {"t2i_r1": recall, "i2t_r1": 2*recall}, "epochs": 4, "seconds": 35.5, "commit": "2adcbd9",
            "versions": {"torch": "2.13.0"}, "machine": "a laptop", "threads": 1, "data": "0f"*8, "command": "papermill ..."} | changes


def test_an_entry_is_read_as_a_table(tmp_path):
    write_json(tmp_path / "tern.json", {"row": "tern", "conditions": CONDITIONS, "records": [record(1, .12), record(0, .1, commit="2adcbd9+")]})
    table = read_table(tmp_path)
    assert table.values("tern", "seed") == [0, 1] and table.values("tern", "commit") == ["2adcbd9+", "2adcbd9"]
    assert table.table()["t2i R@1 %"].tolist() == ["11.0 ± 1.4"]
    assert entry_path("results/main", "mine: two heads").name == "mine--two-heads.json"
    with pytest.raises(ValueError, match="unknown row of"):
        read_table(tmp_path, ["teran-mrsw"])
    with pytest.raises(FileNotFoundError, match="no entry in"):
        read_table(tmp_path / "empty")


@pytest.mark.parametrize("says, changes", [
    (r"records.0.metrics: .*t2i_r1 is 65.0; write a fraction", {"records": [record(0, .1, metrics={"t2i_r1": 65.})]}),
    (r"records.0.metrics.t2i_r1.*valid", {"records": [record(0, .1, metrics={"t2i_r1": "65"})]}),
    (r"records.0.seed", {"records": [record(.5, .1)]}),
    (r"records.0.metrics: .*at least 1", {"records": [record(0, .1, metrics={})]}),
    (r"records.0.note: Extra inputs", {"records": [record(0, .1, note="fast")]}),
    (r"the conditions have no protocol", {"conditions": {"candidates": "all"}}),
    (r"records: .*at least 1", {"records": []}),
    (r"the seed 0 occurs twice", {"records": [record(0, .1)]*2}),
    (r"are of different data", {"records": [record(0, .1), record(1, .1, data="1e"*8)]}),
    (r"the row is 'teran'; name the file teran.json", {"row": "teran"}),
    (r"a text holds half of a character", {"records": [record(0, .1, epochs="\ud800")]}),
    (r"a text holds half of a character", {"records": [record(0, .1, data="\ud800")]}),
])
def test_a_wrong_entry_is_refused(tmp_path, says, changes):
    content = {"row": "tern", "conditions": CONDITIONS, "records": [record(0, .1)]} | changes
    (tmp_path / "tern.json").write_text(json.dumps(content))  # `write_json` would refuse half of a character
    with pytest.raises(ValueError, match="tern.json: .*" + says):
        read_entry(tmp_path / "tern.json")


def test_drawn_scenes_may_differ_between_machines():
    "The last digit of their features depends on the processor."
    one, another = Namespace(machine="one", data="0a"), Namespace(machine="another", data="1e")
    assert different_data([one, another], "flickr8k test") == {"0a", "1e"}
    assert different_data([one, another], "scenes-v1-s0-2000-250-250 test") == set()
    assert different_data([one, Namespace(machine="one", data="1e")], "scenes-v1-s0-2000-250-250 test") == {"0a", "1e"}


# entering and comparing

def toy_run(folder, data, **settings):
    "A finished run of the row `teran-mrsw` with two epochs, without a training."
    _record(recipe("teran-mrsw", "tiny", epochs=2, **settings).for_data(data), data, folder, "cpu")
    (measured,) = toy_result(.1).lines["teran-mrsw"]
    write_json(folder / "metrics-teran-mrsw.json", {"metrics": measured.metrics, "about": measured.about})
    (folder / "log.jsonl").write_text("\n".join(json.dumps({"epoch": epoch, "rsum": .4, "seconds": 8.}) for epoch in (1., 2.)))
    return folder


def changed(results, **about):
    "One line of results with other conditions."
    (result, *_), = results.lines.values()
    return Result({"teran-mrsw": (replace(result, about=result.about | about),)})


def test_the_fingerprint_covers_every_store(tmp_path):
    def collection(name, image_id, value):
        with FeatureWriter(tmp_path / name, "made-up", 2) as writer:
            writer.add(image_id, np.full((1, 2), value), [[0, 0, 1, 1]], (1, 1))
        return Collection(Features(tmp_path / name), Captions(["a kite"], [0], [image_id]))

    first, second, other = collection("a", "im1", .5), collection("b", "im2", 1.), collection("c", "im2", 2.)
    one, another, again = (data_fingerprint(join_collections([first, each])) for each in (second, other, second))
    assert one == again != another


def test_a_run_is_entered(tmp_path):
    data = load_data("scenes:tiny")
    whole = data_fingerprint(data)
    assert len(whole) == 16 != data_fingerprint(data.test)
    run = read_measured([toy_run(tmp_path / "runs/tiny-teran-mrsw-seed0", data)])
    (path,) = enter(run, tmp_path / "table", "OMP_NUM_THREADS=1 papermill nbs/ablations.ipynb out.ipynb")
    (made,) = read_entry(path).records
    assert (made.seed, made.epochs, made.seconds, made.threads, made.data) == (0, 2, 16., 1, whole) and "torch" in made.versions
    enter(changed(run, seed=1, pooling=""), tmp_path / "table", "papermill ...")  # an empty condition is the same as none
    assert read_table(tmp_path / "table").values("teran-mrsw", "seed") == [0, 1]
    with pytest.raises(ValueError, match="teran-mrsw.json: epochs is '2' there and '9' in what is entered"):
        enter(changed(run, epochs=9), tmp_path / "table", "papermill ...")
    with pytest.raises(ValueError, match=r"seed 2 was measured at commit 2adcbd9\+ with changed files"):
        enter(changed(run, seed=2, commit="2adcbd9+"), tmp_path / "table", "papermill ...")
    (one,) = run.lines["teran-mrsw"]
    with pytest.raises(ValueError, match="is the file of the row 'two heads'; give the row 'two-heads' another name"):
        enter(Result({"two heads": (one,), "two-heads": (one,)}), tmp_path / "table", "papermill ...")
    assert compare_with_table(run, tmp_path / "table").expected.unique().tolist() == ["the same digits"]
    one_more = Result({"teran-mrsw": (replace(one, metrics={"t2i_r1": .15, "grounding": .3}),)})
    assert compare_with_table(one_more, tmp_path / "table").inside.tolist() == [False, True]
    with pytest.raises(FileNotFoundError, match="no metrics.json or metrics-<row>.json in"):
        read_measured([tmp_path])


def test_numbers_without_a_run_are_entered_with_what_is_known(tmp_path):
    printed = Result({"tern": (Measured({"t2i_r1": .05}, {"protocol": "kites", "candidates": "all", "machine": "a laptop"}),)})
    (known,) = read_entry(enter(printed, tmp_path, "papermill ...")[0]).records
    assert [known.seed, known.seconds, known.commit, known.data] == [NOT_RECORDED]*4 and known.machine == "a laptop"


def test_prediction_interval():
    "Two seeds allow nearly anything: t is 63.7 with one degree of freedom."
    low, high = prediction_interval([.5, .52])
    assert high - .51 == pytest.approx(63.657*.014142*1.5**.5, abs=1e-4) and low < -.5
    assert prediction_interval([.5, .52, .5, .52, .51])[1] - .51 == pytest.approx(4.604*.01*1.2**.5, abs=1e-4)
    assert prediction_interval([1., 1.], finest=.01) == (.99, 1.01)
    with pytest.raises(ValueError, match="1 seed gives no tolerance"):
        prediction_interval([.5])


def test_comparing_with_a_table(tmp_path):
    enter(toy_result(.1, .13, .12, data="0f"), tmp_path, "papermill ...")
    assert compare_with_table(toy_result(.14), tmp_path).inside.tolist() == [True, True]
    assert compare_with_table(toy_result(.9), tmp_path).inside.tolist() == [False, True]
    with pytest.raises(ValueError, match="the data are 00 now"):
        compare_with_table(toy_result(.1, data="00"), tmp_path)
    with pytest.raises(ValueError, match="epochs is 1 now and '' there"):
        compare_with_table(toy_result(.1, epochs=1), tmp_path)
    both = toy_result(.14, .12).lines["teran-mrsw"]
    partly = Result({"teran-mrsw": (both[0], replace(both[1], metrics={"grounding": .3}))})  # the second has no recall
    assert compare_with_table(partly, tmp_path).inside.tolist() == [True, False, True, True]
    toy_result(.9).save(tmp_path / "now/again.json")
    with pytest.raises(ValueError, match="1 of 2 numbers lie where no further seed of"):
        main(["check", str(tmp_path), str(tmp_path / "now/again.json")])


# documents

@pytest.fixture
def quick(tmp_path):
    "A folder of tables with one table, `quick`."
    enter(toy_result(.1, .13, .12), tmp_path / "quick", "papermill ...")
    return tmp_path


DOCUMENT = "# Kites\n\n<!-- results: table quick metrics=t2i_r1 -->\nold\n<!-- end -->\n\nThat is all.\n"


def test_a_table_of_a_document(quick):
    text = registry_table("table", quick / "quick", metrics=["t2i_r1"])
    assert "| teran-mrsw |" in text and "t2i R@1 %" in text and "grounding" not in text and text.endswith("```sh\npapermill ...\n```")
    with pytest.raises(ValueError, match="unknown kind of table 'tables'; known are table, claims"):
        registry_table("tables", quick / "quick")
    assert "TERAN finds more images" not in registry_table("claims", quick / "quick")  # its other row is not there
    other = {"fast": toy_result(.2, changed="train.learning_rate 0.003").lines["teran-mrsw"]}
    enter(Result(other), quick / "two", "papermill ...")
    enter(toy_result(.1), quick / "two", "papermill quick ...")
    two = registry_table("table", quick / "two")
    assert "changed by row train.learning_rate" in two and "# the first of 2 commands; the files have all" in two


def test_a_document_is_filled(quick):
    new = fill_document(DOCUMENT, quick)
    assert "| teran-mrsw |" in new and "old" not in new and new.endswith("<!-- end -->\n\nThat is all.\n") and fill_document(new, quick) == new
    marker_in_command = new.replace("```sh\n", "```sh\npapermill -p title '<!-- end -->'\n")
    assert marker_in_command != new == fill_document(marker_in_command, quick)
    not_closed = DOCUMENT.replace("<!-- end -->", "")
    for misspelt in (not_closed, DOCUMENT.replace("end", "results: table quick") + DOCUMENT):
        with pytest.raises(ValueError, match="is not closed or misspelt"):
            fill_document(misspelt, quick)
    with pytest.raises(ValueError, match="unknown option of a block of results 'metric'; known are rows, metrics"):
        fill_document(DOCUMENT.replace("metrics=", "metric="), quick)
    shared = DOCUMENT.replace("<!-- results", "<!-- results: conditions quick -->\n<!-- end -->\n\n<!-- results")
    assert [fill_document(text, quick).count("sample standard deviation") for text in (DOCUMENT, shared)] == [1, 1]  # the table does not repeat it
    assert fill_document(shared, quick).count("seed 0, 1, 2") == 1
    assert fill_document(DOCUMENT + DOCUMENT, quick).count("```sh") == 1  # nor the commands of the same table
    documents = quick / "RESULTS.md", quick / "results/README.md"
    (quick / "results").mkdir()
    (quick / "quick").rename(quick / "results/quick")
    for path in documents:
        path.write_text(DOCUMENT)
    fill_documents(documents)
    assert documents[0].read_text() == documents[1].read_text() == new


# the shell

def test_a_command_of_an_executed_workflow(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    executed = {"papermill": {"input_path": "nbs/ablations.ipynb", "parameters": {"rows": ["tern"], "epochs": 2, "begin": ""}}}
    write_json(tmp_path / "out.ipynb", {"metadata": executed})
    assert workflow_command(tmp_path / "out.ipynb") == "papermill nbs/ablations.ipynb out.ipynb -y 'rows: [\"tern\"]' -p epochs 2 -y 'begin: \"\"'"
    with pytest.raises(ValueError, match="was not run by papermill"):
        write_json(tmp_path / "own.ipynb", {"metadata": {}})
        workflow_command(tmp_path / "own.ipynb")


def test_enter_show_and_check(tmp_path):
    toy_result(.1, .13, .12).save(tmp_path / "three.json")
    table = str(tmp_path / "main")
    with pytest.raises(SystemExit):  # no command
        main(["enter", table, str(tmp_path / "three.json")])
    entered = main(["enter", table, str(tmp_path / "three.json"), "--command", "papermill ..."])
    assert entered.values("teran-mrsw", "seed") == [0, 1, 2] and main(["show", table]).lines == entered.lines
    assert main(["check", table, str(tmp_path / "three.json")]).inside.all()
    with pytest.raises(ValueError, match="unknown row of the runs 'tern'; known are teran-mrsw"):
        main(["check", table, str(tmp_path / "three.json"), "--rows", "tern"])


def test_minimal_pairs_without_context(tmp_path, monkeypatch):
    "A row, its words alone, its regions alone, and both; a line may have a label of its own, and ensembles are left out."
    monkeypatch.setattr(processes, "git_commit_hash", lambda: "2adcbd9")  # a number of changed files is not entered
    data = load_data("scenes:tiny")
    rows = [recipe(name, "tiny", epochs=1) for name in ("tern-mrsw-test", "teran-mrsw-ens")]
    results = compare(rows, data, [0], tmp_path / "runs")
    alone = without_contexts(results, data)
    assert list(alone.lines) == ["tern-mrsw-test" + bag for bag in ("", "-words-alone", "-regions-alone", "-both-alone")]
    assert alone.values("tern-mrsw-test", "pairs") == pytest.approx(results.values("tern-mrsw-test", "pairs"))
    labelled = without_contexts(Result({"mine": results.lines["tern-mrsw-test"], "averaged": results.lines["teran-mrsw-ens"]}), data)
    assert list(labelled.lines) == [line.replace("tern-mrsw-test", "mine") for line in alone.lines]
    assert labelled.values("mine", "pairs") == alone.values("tern-mrsw-test", "pairs")
    entered = main(["enter", str(tmp_path / "pairs"), *results.values("tern-mrsw-test", "run"), "--pairs"])
    assert {line: seeds[0].metrics for line, seeds in entered.lines.items()} == {line: seeds[0].metrics for line, seeds in alone.lines.items()}


@pytest.mark.slow
def test_a_workflow_is_entered_and_compared(tmp_path, monkeypatch):
    "Two seeds are entered; the same row, trained again, agrees; an entry that says something else is noticed."
    monkeypatch.setattr(processes, "git_commit_hash", lambda: "2adcbd9")  # a number of changed files is not entered
    about = {"rows": ["tern"], "epochs": 1, "grid": {}}
    play("ablations", **about, output=str(tmp_path / "runs"), seeds=[0, 1])
    main(["enter", str(tmp_path / "results"), str(tmp_path / "runs/ablations.json"), "--command", "papermill ..."])
    path = tmp_path / "results/tern.json"
    entry = read_entry(path)
    assert [record.seed for record in entry.records] == [0, 1] and all(record.seconds > 0 and record.threads == 1 for record in entry.records)
    play("ablations", **about, output=str(tmp_path / "again"))
    check = ["check", str(tmp_path / "results"), str(tmp_path / "again/ablations.json")]
    compared = main(check)
    assert len(compared) > 5 and compared.inside.all()
    for record in entry.records:
        record.metrics["t2i_ndcg_rouge"] = .999
    path.write_text(json.dumps(entry.model_dump()))
    with pytest.raises(ValueError, match="numbers lie where no further seed"):
        main(check)
