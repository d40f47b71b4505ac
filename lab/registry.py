"""The tables of `RESULTS.md` and `results/*.md` are printed from the registry, and the shell enters and checks results.

python -m lab.registry print                                              fills RESULTS.md and results/*.md, or the documents that are named
python -m lab.registry show results/main                                  reads a table, names what is wrong, and prints it
python -m lab.registry enter results/main RUNS --command "papermill ..."  enters what a workflow saved: its table's .json, or folders of tested runs
python -m lab.registry check results/main RUNS                            compares it with the table
"""

import argparse
import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from teran_nb.core.config import one_of, override
from teran_nb.core.files import atomic, project_path, read_json, read_text
from teran_nb.core.show import escape_markdown, markdown_table
from teran_nb.data.collection import Collection
from teran_nb.measure.pairs import context_scores
from teran_nb.measure.results import Measured, Result
from teran_nb.scenes.minimal_pairs import scene_pairs
from teran_nb.training.compare import trainings
from teran_nb.training.recipe import recipe, recipe_names
from teran_nb.training.runs import Run, load_model

from .claims import as_markdown, findings
from .entries import NOT_RECORDED, compare_with_table, enter, read_measured, read_table

# tables of documents

_SHARED = ("±","NDCG@25","machine","threads","torch")  # conditions that the tables of a document share
_SHOWN_ELSEWHERE = ("command","models","field","value","ranker","loss","networks","data")  # in the command, in names of rows, or in the files
_PLATFORM_AND_MODEL = re.compile(r"^\w+-\S+, |, cpu family [^,]+, model [^,]+|, cpu(?=, )")
_GAP = re.compile(rf"(, | / ){NOT_RECORDED}|{NOT_RECORDED}(, | / )")  # rows without a run, such as chance, record less than others


def _conditions_of(results):
    "The conditions of results; of a machine its processor, its device if that is no CPU, and its cores."
    lines = {}
    for row, seeds in results.lines.items():
        machines = [_PLATFORM_AND_MODEL.sub("", r.about.get("machine", NOT_RECORDED)) for r in seeds]
        lines[row] = tuple(replace(r, about=r.about | {"machine": m}) for r, m in zip(seeds, machines))
    return Result(lines).conditions()


def _shared_conditions(results): return {k: v for k, v in _conditions_of(results).items() if k in _SHARED}


def _changes(results):
    "What all rows change, or else the names of the fields that some rows change; rows of a board are named by it."
    if any("ranker" in seeds[0].about for seeds in results.lines.values()): return ""
    changes = {seeds[0].about.get("changed", ""): None for seeds in results.lines.values()}
    if len(changes) == 1: return next(iter(changes))
    fields = {}
    for change in changes: fields |= {part.split()[0]: None for part in change.split(", ") if part}
    return "by row " + ", ".join(fields)


def _own_conditions(results, usual):
    "The conditions that a table prints: those that are neither usual in its document nor shown elsewhere."
    conditions = _conditions_of(results) | {"changed": _changes(results)}
    own_conditions = {}
    for name, values in conditions.items():
        value = _GAP.sub("", values)
        is_usual = set(value.split(" / ")) <= set(usual.get(name, "").split(" / "))
        if value and name not in _SHOWN_ELSEWHERE and not is_usual: own_conditions[name] = value
    return own_conditions


def _conditions_line(conditions): return "; ".join(f"{escape_markdown(k)} {escape_markdown(v)}" for k, v in conditions.items())


def _first_command(results):
    "The command that measures the first row, as a block of shell; says where the others are."
    commands = []
    for row in results.lines: commands += results.values(row, "command")
    commands = [command for command in dict.fromkeys(commands) if command != NOT_RECORDED]
    if not commands: return ""
    place = f"# the first of {len(commands)} commands; the files have all\n" if len(commands) > 1 else ""
    return f"\n\n```sh\n{place}{commands[0]}\n```"


def _frame_table(frame): return markdown_table(list(frame), frame.astype(object).fillna("").values.tolist())


def registry_table(
    kind: str,  # One of `table`, `claims`, `trainings`, `conditions`
    table: str|Path,  # Folder of one table
    rows: Iterable[str] = (),  # Rows, in this order; all of them when empty
    metrics: Iterable[str] = (),  # Names of metrics of a `table`; those of the papers' tables when empty
    usual: Mapping|None = None,  # Conditions that a `table` need not repeat
) -> str:  # Markdown
    "A table of the registry, as a document has it."
    one_of(kind, ("table","claims","trainings","conditions"), "kind of table")
    results = read_table(table, rows)
    if kind == "claims": return as_markdown(findings(results))
    if kind == "trainings": return _frame_table(trainings(results))
    if kind == "conditions": return _conditions_line(_shared_conditions(results))
    conditions = _conditions_line(_own_conditions(results, usual or {}))
    return _frame_table(results.table(metrics)) + "\n\n" + conditions + _first_command(results)


_MARKED_BLOCK = re.compile(
    r"^(?P<head><!-- results: (?P<kind>\w+) (?P<table>[\w./-]+)(?P<options>(?: \w+=\S+)*) -->\n)"
    r"(?P<printed>.*?)^(?P<end><!-- end -->)$", re.DOTALL|re.MULTILINE)  # whole lines, for a command may hold such text


def fill_document(
    text: str,  # Markdown with blocks
    results: str|Path,  # Folder of all tables
) -> str:  # The same text, with the tables of today in its blocks
    "Print the tables of a document into its blocks."
    blocks = list(_MARKED_BLOCK.finditer(text))
    begin = re.compile("^<!-- results:", re.MULTILINE)
    if len(blocks) != len(begin.findall(text)) or any(begin.search(block["printed"]) for block in blocks):
        raise ValueError("a block of results is not closed or misspelt; write <!-- results: table main --> and <!-- end --> on lines of their own")
    usual = {}  # conditions that a block of the kind `conditions` prints
    for block in blocks:
        if block["kind"] == "conditions": usual |= _shared_conditions(read_table(Path(results)/block["table"]))
    printed = set()  # what stands below the tables so far

    def fill(block):
        chosen = {}
        for option in block["options"].split():
            name, _, values = option.partition("=")
            chosen[one_of(name, ("rows","metrics"), "option of a block of results")] = values.split(",")
        table = registry_table(block["kind"], Path(results)/block["table"], **chosen, usual=usual)
        frame, *below = table.split("\n\n")
        new = [part for part in below if part not in printed]
        if block["kind"] == "table" and new != below:
            new.append("The rest is as above." if new else "Conditions and command as above.")
        printed.update(below)
        return "\n\n".join([f"{block['head']}\n{frame}",*new,block["end"]])

    return _MARKED_BLOCK.sub(fill, text)


def fill_documents(
    documents: Iterable[str|Path] = (),  # Markdown files of the project; RESULTS.md and results/*.md when empty
) -> None:
    "Print the tables of the registry into documents; the registry is the folder `results` that they lie in or beside."
    for document in map(project_path, documents or ["RESULTS.md",*sorted(project_path("results").glob("*.md"))]):
        results = document.parent if document.parent.name == "results" else document.parent/"results"
        text = fill_document(read_text(document), results)
        with atomic(document) as tmp: tmp.write_text(text, encoding="utf8")


# minimal pairs

_OF_TRAINING = ("seed","commit","changed","epochs","run")  # conditions that stay, however a model is tested


def without_contexts(
    results: Result,  # `values(row, "run")` are the folders of the runs; ensembles are left out
    data: Collection,  # Drawn scenes
) -> Result:  # On the test split: a line for each row, then for its words alone, its regions alone, and both
    "Test trained models on minimal pairs, with and without context."
    pairs = scene_pairs(data.test)
    lines = {}
    about = {"protocol": data.test.name, "candidates": f"{len(pairs):,} pairs of two captions", "ties": "count half"}
    for row, seeds in results.lines.items():
        if seeds[0].about["models"] != "single": continue
        tested_as = seeds[0].about["model"]  # the line may have a label of its own
        changes = recipe(tested_as).test if tested_as in recipe_names() else {}
        for result in seeds:
            model = load_model(result.about["run"], "auto")
            model.config = override(model.config, changes)
            model.name = row
            conditions = about | {k: result.about[k] for k in _OF_TRAINING if k in result.about}
            for name, scores in context_scores(model, pairs, data.test).items():
                line = row if name == row else f"{row}-{name.replace(' ', '-')}"
                lines[line] = lines.get(line, ()) + (Measured(scores.metrics, conditions | {"model": line}),)
    return Result(lines)


# the shell

def workflow_command(
    notebook: str|Path,  # What papermill wrote, such as out.ipynb
) -> str:  # For a shell, in the folder of the project
    "The papermill command of an executed workflow."
    executed = read_json(Path(notebook), dict)["metadata"].get("papermill", {})
    if "parameters" not in executed: raise ValueError(f"{notebook} was not run by papermill; name its output, or type the command")
    words = ["papermill",f"nbs/{Path(executed['input_path']).name}","out.ipynb"]
    for name, value in executed["parameters"].items():
        simple = isinstance(value, (str,bool,int,float)) and value != ""
        words += ["-p",name,str(value)] if simple else ["-y",f"{name}: {json.dumps(value)}"]
    threads = os.environ.get("OMP_NUM_THREADS")
    return (f"OMP_NUM_THREADS={threads} " if threads else "") + shlex.join(words)


def main(
    arguments: Sequence[str]|None = None,  # Arguments of the shell
):  # What is shown
    "Print documents, show a table, enter results, or check them."
    parser = argparse.ArgumentParser("python -m lab.registry", description=main.__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("print").add_argument("documents", nargs="*", help="markdown files; RESULTS.md and results/*.md when empty")
    verbs.add_parser("show").add_argument("table", help="a folder of the registry")
    for verb in ("enter","check"):
        typed = verbs.add_parser(verb)
        typed.add_argument("table", help="a folder of the registry, such as results/main")
        typed.add_argument("runs", nargs="+", help="tables that a workflow saved as .json, or folders of tested runs")
        typed.add_argument("--rows", nargs="*", default=[], help="these rows only")
        typed.add_argument("--data", default="", help="what they were measured on, as `data` of a workflow; by default what each run was trained on")
        if verb == "enter":
            typed.add_argument("--command", default="", help="that measures them, or the notebook that papermill wrote; with --pairs what was typed here")
            typed.add_argument("--pairs", action="store_true", help="test the runs on minimal pairs, with and without context, and enter that")
    options = parser.parse_args(arguments)
    if options.verb == "print": return fill_documents(options.documents) or "filled"
    if options.verb == "show": return read_table(options.table)
    measured = read_measured(options.runs, options.rows)
    if options.verb == "check":
        compared = compare_with_table(measured, options.table, options.data)
        outside = compared[~compared.inside]
        if not len(outside): return compared
        raise ValueError(f"{len(outside)} of {len(compared)} numbers lie where no further seed of {options.table} is expected, or are others than those of the same seed "
                         f"on the same machine:\n{outside.round(4).to_string()}")
    command = workflow_command(options.command) if options.command.endswith(".ipynb") else options.command
    if options.pairs:
        command = command or "python -m lab.registry " + shlex.join(arguments or sys.argv[1:])
        first, *_ = next(iter(measured.lines.values()))
        measured = without_contexts(measured, Run(first.about["run"]).training_data())
    if not command: parser.error("say by --command what measures them")
    enter(measured, options.table, command, options.data)
    return read_table(options.table)


if __name__ == "__main__": print(main())
