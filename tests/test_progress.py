"""A cell that runs for long says so in papermill's log."""
import json
import os
import subprocess

import nbformat

from conftest import PAPERMILL

CELL = """import time
import teran_nb.core.show as display
display.LOG_SECONDS = .3
for _ in display.progress(range(20), "extracting"): time.sleep(.1)
with display.still_running("validation of epoch 1", .3): time.sleep(1)
bar = display.progress(desc="epoch 12/20", total=144, initial=59, unit="batch")
bar.set_postfix_str("loss 12.34, last rsum 127.9 % (best 127.9), 123 min left in all", refresh=False)
for _ in range(3):
    time.sleep(.5)
    bar.update()
bar.close()
"""


def test_progress_reaches_the_log_and_stays_one_output(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, tmp_path / "in.ipynb")
    command = [*PAPERMILL, str(tmp_path / "in.ipynb"), str(tmp_path / "out.ipynb")]
    environment = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}  # with it ipykernel leaves the streams alone
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert sum(line.startswith("extracting:") and "/20" in line for line in lines) >= 2, done.stderr
    assert any(line.startswith("validation of epoch 1:") for line in lines), done.stderr
    assert "123 min left in all]" in done.stderr, done.stderr  # the end of the longest line that a training writes
    outputs = json.loads((tmp_path / "out.ipynb").read_text())["cells"][0]["outputs"]
    assert len(outputs) == 2 and "100%" in "".join(outputs[0]["data"]["text/plain"])
