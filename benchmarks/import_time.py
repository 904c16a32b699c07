"""What `import zoo` costs compared with `import torch`, each in a fresh interpreter.

python -m benchmarks.import_time
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from benchmarks.harness import ROOT, Contender, Ratio, interleave, parser, serve, write

STATEMENTS = {"torch": "import torch", "zoo": "import zoo", "build_model": "from zoo import build_model"}
"""The package is lazy: `import zoo` alone loads nothing, so what it stands for is measured as well."""


def main() -> None:
    """Measure the imports in turns."""
    options = parser(__doc__ or "")
    options.add_argument("--worker", choices=STATEMENTS)
    given = options.parse_args()
    if given.worker:

        def once() -> float:
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", STATEMENTS[given.worker]], check=True, cwd=ROOT)
            return time.perf_counter() - start

        serve({"statement": STATEMENTS[given.worker]}, once)
        return
    contenders = [
        Contender.start(name, ["benchmarks.import_time", "--worker", name], given.keep_memory)
        for name in STATEMENTS
    ]
    interleave(contenders, given.rounds, repetitions=3)
    for contender in contenders:
        contender.stop()
    rows = [
        {"statement": c.about["statement"], "seconds": f"{statistics.median(c.rounds):.3f}"}
        for c in contenders
    ]
    torch, *ours = contenders
    command = " ".join(["python -m benchmarks.import_time", *sys.argv[1:]])
    ratios = [Ratio.of(c.about["statement"], c, torch) for c in ours]
    write(given.name or "import", "Import time", command, contenders, rows, ratios)


if __name__ == "__main__":
    main()
