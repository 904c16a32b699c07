"""What the study reads from outside the repository, in one file, for a machine without a network.

python -m benchmarks.scale.elsewhere.pack study.tar.gz

The corpus `python-docs` is the library of the Python that runs. So that another one reads the same text, the
sources of this one's library are packed as well, and `site/sitecustomize.py` shows them to it.
"""

from __future__ import annotations

import json
import sys
import tarfile
from io import BytesIO
from pathlib import Path

from benchmarks.harness import ROOT
from benchmarks.scale.place import DATA, THE_STUDY
from benchmarks.scale.questions import LADDERS
from zoo.data.corpora.python_docs import PythonDocsCorpus
from zoo.data.text.dataset import TextData
from zoo.run.job import Job

LIBRARY, SHARED, CACHE = "library", "shared/data", "cache/zoo"
"""The folders in the file: the library, the texts as they lie beside the repository, and the token files."""
NAMES = f"{LIBRARY}/names.json"
"""The names of the library's modules, which differ between versions of Python."""


def pack(file: Path) -> None:
    """Write the file.

    Raises:
        DataError: a text of the corpus is not there.
        FileNotFoundError: a text that models are scored on is not there.
    """
    job = Job.of(THE_STUDY.load(LADDERS[0]).ladder[0].sides[0].config)
    data = job.data
    assert isinstance(data, TextData)  # the study reads text
    data.prepare(job.model).measure_overlap()
    with tarfile.open(file, "w:gz") as out:
        for source in data.corpus.sources():
            if source.path.is_relative_to(DATA):
                out.add(source.path.resolve(), f"{SHARED}/{source.path.relative_to(DATA)}")
        for text in THE_STUDY.texts.values():
            out.add(text, f"{SHARED}/{text.relative_to(DATA)}")
        topics, *library = PythonDocsCorpus().sources()
        out.add(topics.path, f"{LIBRARY}/pydoc_data/topics.py")
        for source in library:
            out.add(source.path, source.name)  # "library/..."
        names = json.dumps(sorted(sys.stdlib_module_names)).encode()
        entry = tarfile.TarInfo(NAMES)
        entry.size = len(names)
        out.addfile(entry, BytesIO(names))
        out.add(data.cache_folder(), CACHE)


if __name__ == "__main__":
    pack(Path(sys.argv[1]))
    print(f"{sys.argv[1]}: {Path(sys.argv[1]).stat().st_size / 2**20:.1f} MiB, to unpack beside {ROOT.name}")
