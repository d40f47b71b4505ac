"""Every workflow runs by papermill, from the repository and from elsewhere, and leaves what it promises."""
import ast
import json
import re
import shutil
import subprocess

import html5lib
import nbformat
import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, command, papermill, play
from nbconvert.preprocessors import ExecutePreprocessor
from papermill import inspect_notebook
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook
from PIL import Image

from teran_nb.training import parameters as workflow_parameters
from teran_nb.data.convert import convert
from teran_nb.scenes.drawing import compose
from teran_nb.data.features import Features
from teran_nb.data.features import FeatureWriter
from teran_nb.data.collection import Collection
from teran_nb.measure.results import read_result
from teran_nb.measure.retrieval import retrieval
from teran_nb.zoo.published_network import PublishedConfig, PublishedNetwork
from teran_nb.zoo.originals import load_original, save_original
from teran_nb.training.compare import compare
from teran_nb.training.datasets import WORLDS, load_data
from teran_nb.training.recipe import recipe
from teran_nb.training.runs import Run
from teran_nb.zoo.published_code import Reference
from teran_nb.model.regions import RegionConfig, StackConfig
from teran_nb.scenes.scenes import scene_collection
from teran_nb.model.text import TextConfig, text_encoder

FIGURES = ("curves", "gallery", "sentences", "heatmap", "grounding")


def numbers(run):
    return json.loads((run / "metrics.json").read_text())


def test_train_leaves_model_metrics_and_figures(trained):
    found = numbers(trained)
    assert found["about"]["protocol"].endswith("test") and found["about"]["seed"] == 0
    assert 0 <= found["metrics"]["t2i_r1"] <= found["metrics"]["t2i_r10"] <= 1
    assert found["grounding_about"]["right"] == "IoU 0.5 with any box"
    for name in FIGURES:
        with Image.open(trained / "figures" / f"{name}.png") as im:
            assert min(im.size) > 300
    assert (trained / "model" / "model.safetensors").is_file() and (trained / "environment.json").is_file()


@pytest.mark.slow
def test_relative_paths_are_meant_from_the_project(tmp_path):
    "papermill in nbs/ and papermill in the root write to the same place; outside a project it is the working directory."
    papermill("train", tmp_path / "out.ipynb", cwd=tmp_path, model="tern", seed=5, name="a", epochs=1)
    assert numbers(tmp_path / "runs" / "a")["about"]["seed"] == 5
    (tmp_path / "settings.ini").touch()
    (tmp_path / "nbs").mkdir()
    play("train", cwd=tmp_path / "nbs", name="b", epochs=1)
    assert (tmp_path / "runs" / "b" / "metrics.json").is_file()


def test_same_command_same_metrics(trained, tmp_path):
    papermill("train", tmp_path / "out.ipynb", output=str(tmp_path), name="again")
    assert numbers(tmp_path / "again")["metrics"] == numbers(trained)["metrics"]


def test_evaluate_repeats_the_numbers(trained, tmp_path):
    papermill("evaluate", tmp_path / "out.ipynb", run=str(trained), output=str(tmp_path / "ev"))
    again, first = numbers(tmp_path / "ev"), numbers(trained)["metrics"]
    assert {name: again["metrics"][name] for name in first} == pytest.approx(first)
    assert 0 <= again["metrics"]["pairs"] <= 1 and {"colour", "swapped attributes"} <= {kind["kind"] for kind in again["pairs"]}
    names = {"pairs", "gallery", "sentences", "hard-successes", "hard-failures", "wrong-but-relevant", "hard-sentences", "receipt", "two-pictures", "heatmap", "grounding", "heats", "word"}  # no phrase table, so no figure of phrases
    assert {p.stem for p in (tmp_path / "ev").glob("*.png")} == names


def test_phrases_are_grounded_in_every_split(trained, tmp_path):
    "A table of phrases in scenes of training and validation, whatever split is ranked; a wrong name is refused before the work begins."
    world, rows = scene_collection(**WORLDS["tiny"]), ["filename,phrase,x1,y1,x2,y2"]
    for i in (0, 1, 65):
        text, link, (w, h) = world.captions.texts[world.captions.rows_of(i)[0]], world.captions.links[world.captions.rows_of(i)[0]][0], world[i].regions.size
        rows += [f"{world.image_ids[i]}.png,{text[link.start:link.end]},{x1/w},{y1/h},{x2/w},{y2/h}" for x1, y1, x2, y2 in link.boxes]
        rows += [f"{world.image_ids[i]},nothing that was said,0,0,1,1"]
    (tmp_path / "phrases.csv").write_text("\n".join(rows))
    shutil.copytree(trained, tmp_path / "run")
    environment = json.loads((tmp_path / "run/environment.json").read_text())
    (tmp_path / "run/environment.json").write_text(json.dumps(environment | {"commit": "2adcbd9"}))  # numbers of changed files are not entered
    about = {"output": str(tmp_path / "ev")}
    play("evaluate", run=str(tmp_path / "run"), options={"phrases": str(tmp_path / "phrases.csv"), "word_pooling": "max", "pairs": ""}, **about)
    entered = read_result(tmp_path / "ev/results.json")
    assert set(entered.lines) == {"teran-mrsw", "teran-mrsw-train", "teran-mrsw-val", "chance"}
    phrases = read_result(tmp_path / "ev/phrases.json")
    assert entered.values("teran-mrsw-train", "grounding") == phrases.values("train", "grounding")
    assert entered.values("teran-mrsw-val", "commit") == ["2adcbd9"] 
    assert {line: phrases.values(line, "phrases") for line in phrases.lines} == {"train": [4], "val": [2]} and "by the max" in phrases.values("train", "region")[0]
    assert phrases.values("val", "file") == ["phrases.csv, 3 read as captions of their own"] and numbers(tmp_path / "ev")["metrics"]["t2i_r10"] > 0
    with Image.open(tmp_path / "ev" / "phrases.png") as im:
        assert min(im.size) > 300
    with pytest.raises(FileNotFoundError, match="gone.csv; name a .csv, the folder of Flickr30k Entities"):
        play("evaluate", run=str(trained), output=str(tmp_path / "no"), options={"phrases": "gone.csv"})
    i, (w, h) = world.image_ids[0], world[0].regions.size
    (tmp_path / "pixels.csv").write_text(f"filename,phrase,x1,y1,x2,y2\n{i},a thing,0,0,{w},{h}\n{i},a rounded thing,0,-0.0000004,1.0000005,1")
    with pytest.raises(ValueError, match=r"pixels.csv line 2: .*with pixels=True pixels"):
        play("evaluate", run=str(trained), output=str(tmp_path / "no"), options={"phrases": str(tmp_path / "pixels.csv")})
    assert not (tmp_path / "no" / "metrics.json").exists()


def test_gallery_opens_from_disk(trained, tmp_path):
    "Strict HTML, no outside address, every link a file; what else stood in the folder stays."
    site = tmp_path / "figures"
    site.mkdir()
    (site / "metrics.json").write_text("{}")
    assert inspect_notebook(ROOT / "nbs" / "gallery.ipynb")["output"]["default"] == '"runs/gallery"'  # never the repository's figures
    papermill("gallery", tmp_path / "out.ipynb", run=str(trained), output=str(site), max_queries=12)
    pages = list(site.rglob("*.html"))
    assert {"index.html", "sentences-1.html", "pictures-1.html", "words.html"} <= {p.name for p in pages} and (site / "metrics.json").read_text() == "{}"
    for page in pages:
        text = page.read_text(encoding="utf8")
        assert "http://" not in text and "https://" not in text
        html5lib.HTMLParser(strict=True).parse(text)
        for link in re.findall(r'(?:href|src)="([^"#]+)', text):
            assert (page.parent / link).is_file(), f"{page.name} links to {link}"
    assert len(list(site.glob("thumbs/*.jpg"))) > 5 and sum(p.stat().st_size for p in site.rglob("*") if p.is_file()) < 4e6


@pytest.mark.slow
def test_compare_fills_its_table(tmp_path):
    papermill("compare", tmp_path / "out.ipynb", seeds=[0, 1], options={"epochs": 1}, output=str(tmp_path / "c"))
    lines = json.loads((tmp_path / "c" / "table.json").read_text())["lines"]
    assert {k: len(v) for k, v in lines.items()} == {"teran-mrsw": 2, "tern": 2}
    assert {p.stem for p in (tmp_path / "c").glob("*.png")} == {"values", "curves", "grounding", "heatmaps"}


@pytest.mark.slow
def test_compare_varies_a_field(tmp_path):
    "Two schedules of IAIS beside the model without it: a line for each, and the figures of ISDa."
    about = {"varied": {"iais-singular": {"iais.annealing, iais.scale": [["exp", 5], ["linear", 5]]}}}
    done = play("compare", models=["single-stream"], seeds=[0], options={"batch_size": 4, "epochs": 1}, output=str(tmp_path), **about)
    assert list(done["table"].lines) == ["single-stream", "iais-singular exp 5", "iais-singular linear 5"]
    assert list(done["measured"].line) == list(done["table"].lines) and done["measured"].isda.notna().all()
    assert {p.stem for p in tmp_path.glob("*.png")} == {"values", "curves", "isda", "grounding", "heatmaps"}
    read = play("compare", models=["single-stream"], seeds=[0], options={"batch_size": 4, "epochs": 1}, output=str(tmp_path), **about)
    assert read["table"].lines == done["table"].lines  # nothing is trained again


@pytest.mark.slow
def test_ablations_fill_every_row(tmp_path):
    "All rows of the papers' tables; a second call reads what the first one trained, and adds a seed."
    about = {"rows": ["tern", "tern-mrsw-test", "teran-mrsw", "teran-mrsw-ens"], "epochs": 1, "data": "scenes:tiny", "scale": "scenes", "grid": {"learning_rate": [0.0001, 0.003]}, "output": str(tmp_path)}
    papermill("ablations", tmp_path / "out.ipynb", **about)
    first = json.loads((tmp_path / "ablations.json").read_text())["lines"]
    assert list(first) == about["rows"] and first["teran-mrsw-ens"][0]["about"]["models"] == "ensemble of 2"
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("model.safetensors")}
    play("ablations", **about, seeds=[0, 1])
    second = json.loads((tmp_path / "ablations.json").read_text())["lines"]
    assert {k: v[0] for k, v in second.items()} == {k: v[0] for k, v in first.items()} and all(len(v) == 2 for v in second.values())
    assert before == {p: p.stat().st_mtime_ns for p in before}
    trained = pd.read_csv(tmp_path / "trainings.csv")
    assert list(trained.chosen) == list(trained[["learning_rate 0.0001", "learning_rate 0.003"]].idxmax(axis=1)) and set(trained["epochs trained"]) == {"1, 1"}
    assert (tmp_path / "ablations.tex").is_file() and (tmp_path / "ablations.png").is_file()


@pytest.mark.slow
def test_a_row_begins_with_another(tmp_path):
    "The pretraining that a row begins with is trained first, once, by the same call; the run of the row keeps where it began."
    world, row = load_data("scenes:tiny"), "iais-singular-pretrained"
    rows = [recipe(row, "tiny", epochs=1)]
    first = compare(rows, world, [0], tmp_path)
    weights = tmp_path / "tiny-single-stream-pretraining-seed0/model/model.safetensors"
    assert Run(tmp_path / f"tiny-{row}-seed0").recipe.begins == str(weights.parent.parent)
    when = weights.stat().st_mtime_ns
    assert compare(rows, world, [0], tmp_path).lines == first.lines and weights.stat().st_mtime_ns == when
    both = [recipe(name, "tiny", epochs=1) for name in ("single-stream-pretrained", row)]
    tuned = compare(both, world, [1], tmp_path / "tuned", grid={"learning_rate": [1e-6, .003]})
    begins = {Run(folder).recipe.begins for name in tuned.lines for folder in (tmp_path / "tuned").glob(f"tiny-{name}-*seed1")}
    assert begins == {str(tmp_path / "tuned/tiny-single-stream-pretraining-seed1")}, "both choices begin with the same pretraining"
    assert first.values(row, "changed") == [""] and {"isda", "isda_shares", "entropy_words"} <= first.lines[row][0].metrics.keys()


def test_the_tour_shows_every_step(toured):
    "The figures, the tables, and the view as the last thing on the page."
    outputs = [o for c in nbformat.read(toured, 4).cells for o in c.get("outputs", ())]
    assert not [o for o in outputs if o.output_type == "error"] and sum("image/png" in o.get("data", {}) for o in outputs) >= 9
    assert '<iframe class="teran-view"' in outputs[-1].data["text/html"]
    run = next((toured.parent / "runs").glob("*/metrics.json")).parent
    assert {p.stem for p in (run / "figures").glob("*.png")} == {"curves", "heatmaps", "gallery", "receipt", "grounding", "photograph", "bike"}


def test_prepare_makes_a_collection_that_trains(tmp_path):
    "The example as it comes, a training on it, a part of it, and features of somebody's, which have no splits."
    papermill("prepare", tmp_path / "out.ipynb", output=str(tmp_path / "example"))
    made = Collection.open(tmp_path / "example")
    assert len(made) == 36 and set(made.captions.splits) == {"train", "val", "test"} and made[0].path.suffix == ".JPG"
    with Image.open(tmp_path / "example" / "samples.png") as im:
        assert min(im.size) > 300
    trained = play("train", data=str(tmp_path / "example"), epochs=1, output=str(tmp_path / "runs"))
    assert len(trained["run"].history.epochs) == 1 and trained["result"].sim.shape == (6, 30)
    play("prepare", images=5, options={"split": "train"}, output=str(tmp_path / "part"))
    assert len(Collection.open(tmp_path / "part")) == 5
    play("prepare", pictures="", features=str(ROOT / "data" / "formats" / "lxmert.tsv"), options={"made_by": "somebody's"}, output=str(tmp_path / "foreign"))
    foreign = Collection.open(tmp_path / "foreign")
    assert (len(foreign), len(foreign.captions), foreign.features.extractor) == (3, 0, "somebody's")
    with pytest.raises(ValueError, match="no captions and no splits"):
        play("train", data=str(tmp_path / "foreign"), output=str(tmp_path))


def test_prepare_names_what_it_cannot_use(tmp_path):
    "A broken photograph, capitals and unicode, the same picture in two splits; a second call finds it done."
    folder = tmp_path / "photos"
    (folder / "été").mkdir(parents=True)
    rows = ["image,caption,split"]
    for i in range(6):
        compose(500 + i % 5).picture().save(folder / "été" / f"Bär {i}.JPG")
        rows.append(f"Bär {i}.JPG,a picture number {i},{'test' if i > 3 else 'train'}")
    (folder / "broken.jpeg").write_bytes(b"\xff\xd8 cut")
    (folder / "c.csv").write_text("\n".join(rows))
    about = {"pictures": str(folder), "captions": str(folder / "c.csv"), "output": str(tmp_path / "made")}
    with pytest.warns(UserWarning, match="1 images have no captions, such as broken"):
        play("prepare", **about)
    papermill("prepare", tmp_path / "out.ipynb", **about)
    found = json.loads((tmp_path / "made" / "collection.json").read_text(encoding="utf8"))
    assert found["content"]["counts"]["images"] == 6
    text = (tmp_path / "out.ipynb").read_text(encoding="utf8")
    assert "the same file" in text and "1 images have no captions, such as broken" in text


@pytest.fixture(scope="module")
def own(trained, tmp_path_factory):
    "The executed notebook of one's own pictures, which were drawn."
    folder = tmp_path_factory.mktemp("own")
    papermill("mine", folder / "out.ipynb", run=str(trained), output=str(folder / "mine"))
    return folder


@pytest.mark.xdist_group("mine")
def test_mine_answers_without_captions(own, trained):
    "A gallery, pages and the explorer of pictures that nobody has described."
    assert {p.name for p in (own / "mine").glob("*.png")} == {"samples.png", "answers.png"}
    for page in (own / "mine" / "pages").rglob("*.html"):
        text = page.read_text(encoding="utf8")
        html5lib.HTMLParser(strict=True).parse(text)
        assert "true match" not in text.split("<main>")[-1].split("<script")[0]
    outputs = [o for c in nbformat.read(own / "out.ipynb", 4).cells for o in c.get("outputs", ())]
    shown = next(o.data["text/html"] for o in outputs if "teran-static" in str(o.get("data", {}).get("text/html", "")))
    assert shown.count("<figure") == 12 and "data:image/jpeg" in shown and "true match" not in shown
    with pytest.raises(FileNotFoundError, match="nowhere is not there"):
        play("mine", run=str(trained), pictures="nowhere", output=str(own / "no"))


@pytest.mark.xdist_group("mine")
def test_mine_answers_by_an_index(own, trained):
    "The same gallery, pages and explorer, with the vectors on the disk."
    papermill("mine", own / "indexed.ipynb", run=str(trained), output=str(own / "indexed"), index="always")
    assert {p.name for p in (own / "indexed").rglob("*") if p.suffix in (".png", ".html")} == {p.name for p in (own / "mine").rglob("*") if p.suffix in (".png", ".html")}
    assert "every image compared" in (own / "indexed.ipynb").read_text(encoding="utf8")


@pytest.mark.parametrize("row", ["tern-mwsr-test", "tern-align", "teran-mrsw-ens", "iais-singular", "cgam-one-head"])
def test_a_row_is_a_value_of_train(tmp_path, row):
    play("train", model=row, epochs=1, output=str(tmp_path), name="run")
    found = numbers(tmp_path / "run")
    assert found["about"]["model"] == row and found["about"]["models"] == ("ensemble of 2" if row.endswith("ens") else "single")
    assert found["about"]["NDCG@25"].startswith("exponential gains") and 0 < found["metrics"]["t2i_ndcg_rouge"] < 1
    assert ({"isda", "iais_singular", "iais_distributed"} <= found["metrics"].keys()) == row.startswith("iais")


def test_a_store_without_pictures(tmp_path):
    "Somebody's features with a spreadsheet of captions, no pictures, no links: every figure is drawn all the same."
    rng, rows = np.random.default_rng(0), ["image,caption,split"]
    with FeatureWriter(tmp_path / "store", "somebody", dim=20) as store:
        for i in range(40):
            store.add(f"im{i}", rng.normal(size=(1 + i % 5, 20)), np.tile([1, 2, 60, 40], (1 + i % 5, 1)), (80, 60))
            rows += [f"im{i},a {'red' if i % 2 else 'blue'} number {i},{('train', 'train', 'val', 'test')[i % 4]}"] * (1 + i % 3)
    (tmp_path / "c.csv").write_text("\n".join(rows))
    about = {"data": str(tmp_path / "store"), "options": {"captions": str(tmp_path / "c.csv")}, "output": str(tmp_path / "runs")}
    play("train", name="own", **about)
    assert numbers(tmp_path / "runs" / "own")["about"]["candidates"].startswith("10 images x")
    for name in FIGURES:
        assert (tmp_path / "runs" / "own" / "figures" / f"{name}.png").is_file()
    (tmp_path / "ids.csv").write_text("image,caption\n" + "".join(f"im{i},number {i}\n" for i in range(40)))
    play("evaluate", **(about | {"options": {"captions": str(tmp_path / "ids.csv")}, "run": str(tmp_path / "runs" / "own"), "split": "all", "output": str(tmp_path / "ev")}))
    assert numbers(tmp_path / "ev")["about"]["candidates"] == "40 images x 40 captions"


@pytest.mark.slow
def test_a_store_without_boxes(tmp_path):
    "SCAN's array: training and evaluation end with all their files, and what cannot be drawn is said once, in words."
    rng, rows = np.random.default_rng(0), ["image,caption,split"]
    np.save(tmp_path / "all_ims.npy", rng.normal(size=(40, 4, 12)).astype(np.float32))
    assert not convert(tmp_path / "all_ims.npy", tmp_path / "store", "somebody", show_progress_bar=False).boxes
    rows += [f"{i},a {'red' if i % 2 else 'blue'} number {i},{('train', 'train', 'val', 'test')[i % 4]}" for i in range(40)]
    (tmp_path / "c.csv").write_text("\n".join(rows))
    about = {"data": str(tmp_path / "store"), "options": {"captions": str(tmp_path / "c.csv")}}
    papermill("train", tmp_path / "train.ipynb", name="own", output=str(tmp_path / "runs"), **about)
    papermill("evaluate", tmp_path / "evaluate.ipynb", run=str(tmp_path / "runs" / "own"), output=str(tmp_path / "ev"), **about)
    for out, says in (("train", ("words cannot be shown in the picture",)), ("evaluate", ("words cannot be shown in the picture", "was found cannot be shown, only in which pictures"))):
        said = "".join(o.get("text", "") for c in nbformat.read(tmp_path / f"{out}.ipynb", 4).cells for o in c.get("outputs", ()))
        for line in says:
            assert said.count(line) == 1, (out, line)
    assert {p.stem for p in (tmp_path / "runs" / "own" / "figures").glob("*.png")} == set(FIGURES)
    drawn = {p.stem for p in (tmp_path / "ev").glob("*.png")}  # none is saved empty: without boxes there is no region of one word to cut out
    assert drawn - {"hard-successes", "hard-failures", "hard-sentences", "wrong-but-relevant"} == {
        "gallery", "grounding", "heatmap", "receipt", "sentences", "two-pictures", "word"}
    assert len(drawn) == 10


@pytest.mark.parametrize("parameters, says", [
    ({"model": "clip"}, "unknown model 'clip'; known are tern"), ({"scale": "huge"}, "unknown scale 'huge'; known are coco"),
    ({"data": "nowhere"}, "there is no folder .*nowhere"), ({"options": {"precision": "int8"}}, "not 'fp32', 'bf16' or 'fp16'"), ({"resume": "nothing"}, "nothing to resume"),
    ({"device": "tpu"}, "known are auto, cpu, cuda"), ({"options": {"protocol": "1k"}}, "known are Flickr30k 1K"),
    ({"data": "scenes:tiny", "options": {"relevance": {"test": {"spice": "nowhere.npy"}}}}, "no spice relevance of the test split")])
def test_a_wrong_parameter_is_answered_with_the_right_ones(tmp_path, parameters, says):
    with pytest.raises((ValueError, FileNotFoundError), match=says):
        play("train", **({"output": str(tmp_path)} | parameters))
    assert not list(tmp_path.rglob("last.pt"))


@pytest.mark.parametrize("workflow", sorted((ROOT / "nbs").glob("*.ipynb")), ids=lambda path: path.stem)
def test_papermill_understands_every_parameter(workflow):
    known = inspect_notebook(workflow)  # it reads a line by a regular expression, which an equals sign in a comment misleads
    notebook = json.loads(workflow.read_text(encoding="utf8"))
    cell, = [c for c in notebook["cells"] if "parameters" in c["metadata"].get("tags", [])]
    written = {statement.targets[0].id for statement in ast.parse("".join(cell["source"])).body}
    assert written == known.keys()


def test_an_error_ends_papermill(tmp_path):
    done = subprocess.run(command("train", tmp_path / "out.ipynb", output=str(tmp_path), model="clip"), cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and "unknown model 'clip'; known are tern" in done.stderr


@pytest.mark.parametrize("workflow", sorted((ROOT / "nbs").glob("*.ipynb")), ids=lambda path: path.stem)
def test_an_unknown_parameter_is_refused_before_the_work(workflow, tmp_path, monkeypatch):
    "papermill writes the cell, and the workflow reads the cells that IPython would have kept."
    cells = [c for c in parameterize_notebook(load_notebook_node(str(workflow)), {"devise": "cpu"}).cells if c.cell_type == "code"]
    last = next(i for i, c in enumerate(cells) if "injected-parameters" in c.metadata.tags)
    monkeypatch.setattr(workflow_parameters, "_executed_cells", lambda: [c.source for c in cells[:last + 1]])
    with pytest.raises(ValueError, match=r"unknown parameter 'devise'; known are .*; did you mean device\?"):
        play(workflow.stem, output=str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_copy_knows_the_variables_of_its_own_cells(tmp_path):
    "A copy of train under another name, with a cell above the parameters: papermill may change a variable of that cell."
    notebook = nbformat.read(ROOT / "nbs" / "train.ipynb", 4)
    own = nbformat.v4.new_code_cell("sharpness = 10\ndef sharper(x): return x*sharpness")
    notebook.cells.insert(0, own)
    nbformat.write(notebook, tmp_path / "my-train.ipynb")

    def error_of(**parameters):
        words = command("train", tmp_path / "out.ipynb", output=str(tmp_path), **parameters)
        words[words.index(str(ROOT / "nbs" / "train.ipynb"))] = str(tmp_path / "my-train.ipynb")
        return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120).stderr
    refused = error_of(sharpness=20, epoch=3)
    assert "unknown parameter 'epoch'; known are sharpness, model" in refused and "did you mean epochs?" in refused
    assert "unknown model 'clip'" in error_of(sharpness=20, model="clip")  # the parameters are known, and the checks go on


@pytest.mark.slow
def test_by_hand(tmp_path):
    "Run all cells in the notebook's own folder, as JupyterLab does."
    nb = nbformat.read(ROOT / "nbs" / "train.ipynb", as_version=4)
    cell = next(c for c in nb.cells if "parameters" in c.metadata.get("tags", []))
    cell.source += f'\nscale = "tiny"\noutput = {str(tmp_path)!r}\nname = "hand"'
    ExecutePreprocessor(timeout=200, kernel_name="python3").preprocess(nb, {"metadata": {"path": str(ROOT / "nbs")}})
    assert (tmp_path / "hand" / "metrics.json").is_file()


def test_an_original_checkpoint_is_evaluated(tmp_path):
    "Somebody's .pth.tar before somebody's features: the numbers of the published code."
    rng, rows, texts = np.random.default_rng(0), ["image,caption,split"], []
    with FeatureWriter(tmp_path / "store", "somebody", dim=8) as store:
        for i in range(12):
            store.add(f"im{i}", rng.normal(size=(4, 8)), np.tile([1, 2, 60, 40], (4, 1)), (80, 60))
            texts.append(f"a {'red' if i % 2 else 'blue'} number {i} on the table")
            rows.append(f"im{i},{texts[-1]},test")
    (tmp_path / "c.csv").write_text("\n".join(rows))
    config = PublishedConfig(text=TextConfig(layers=1, dim=16, heads=4, feed_forward=32), regions=RegionConfig(8, stack=StackConfig(1)),
                             dim=16, last=StackConfig(1), reference=Reference("teran"))
    save_original(PublishedNetwork(config, text_encoder(config.text, texts)), tmp_path / "TERAN.pth.tar")
    play("evaluate", run=str(tmp_path / "TERAN.pth.tar"), data=str(tmp_path / "store"), options={"captions": str(tmp_path / "c.csv")}, output=str(tmp_path / "ev"))
    model = load_original(tmp_path / "TERAN.pth.tar")
    store = Features(tmp_path / "store")
    sim = model.similarity(model.encode_images(store), model.encode_captions(texts))
    assert numbers(tmp_path / "ev")["metrics"]["t2i_r1"] == retrieval(sim, range(12))["t2i_r1"]
    right = model.corrected()
    assert not sim.allclose(right.similarity(right.encode_images(store), right.encode_captions(texts)))
