"""Shows the library of another Python to the corpus `python-docs`; Python imports this file when it starts.

STUDY_LIBRARY names the folder `library` of a file that `benchmarks.scale.elsewhere.pack` has written. Without
it nothing changes.
"""

import json
import os
import sys
import sysconfig
from pathlib import Path

if library := os.environ.get("STUDY_LIBRARY"):
    import pydoc_data

    sys.stdlib_module_names = frozenset(json.loads(Path(library, "names.json").read_text(encoding="utf-8")))
    get_path = sysconfig.get_path

    def path_of(name: str, *arguments: object, **more: object) -> str:
        """The folder of the other library, and what the interpreter says of everything else."""
        return library if name == "stdlib" else get_path(name, *arguments, **more)

    sysconfig.get_path = path_of
    pydoc_data.__path__.insert(0, f"{library}/pydoc_data")
