"""Shows the library of another Python to the corpus `python-docs`; Python imports this file when it starts.

STUDY_LIBRARY names the folder `library` of a file that `benchmarks.scale.elsewhere.pack` has written. Without
it nothing changes.
"""

import json
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

if library := os.environ.get("STUDY_LIBRARY"):
    import pydoc_data

    names = json.loads(Path(library, "names.json").read_text(encoding="utf-8"))
    sys.stdlib_module_names = frozenset(names)
    get_path = sysconfig.get_path

    def path_of(name: str, *arguments: Any, **more: Any) -> str:
        """The folder of the other library, and what the interpreter says of everything else."""
        return library if library and name == "stdlib" else get_path(name, *arguments, **more)

    sysconfig.get_path = path_of
    pydoc_data.__path__.insert(0, f"{library}/pydoc_data")
