"""The study on another machine: the library of another Python as text, and what is compiled first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import ROOT
from benchmarks.scale.elsewhere.warm import shapes

SITE = ROOT / "benchmarks/scale/elsewhere/site"
DOCUMENTS = """
from zoo.data.corpora.python_docs import PythonDocsCorpus
print([(document.id, document.text) for document in PythonDocsCorpus().documents()])
"""


def test_the_library_of_another_python_is_the_text(tmp_path: Path) -> None:
    (tmp_path / "pydoc_data").mkdir()
    (tmp_path / "pydoc_data/topics.py").write_text("topics = {'loops': 'About loops.'}\n")
    (tmp_path / "one.py").write_text("x = 1\n")
    (tmp_path / "left_out.py").write_text("y = 2\n")
    (tmp_path / "names.json").write_text(json.dumps(["one", "not_there"]))
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{SITE}", "STUDY_LIBRARY": str(tmp_path)}
    command = [sys.executable, "-c", DOCUMENTS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[('topics/loops', 'About loops.'), ('library/one.py', 'x = 1\\n')]\n"
    del environment["STUDY_LIBRARY"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "library/asyncio/" in done.stdout and "About loops." not in done.stdout


def test_every_shape_but_the_smallest_is_compiled_once_small_ones_first() -> None:
    names = [name for name, _ in shapes(["q3"])]
    assert len(names) == 32  # Small and He are the same model; eight models of four sizes
    assert [name.rpartition(" ")[2] for name in names] == sorted("2345" * 8)
    assert "q3 method=he, size 2" not in names
