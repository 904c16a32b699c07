"""What `import zoo` and a first model cost beside `import torch`, each in a fresh interpreter.

python -m benchmarks.import_time --rounds 11

The times are of the processor, user and system together, which a busy machine changes little. Interpreters
may keep compiled sources, as they do unless PYTHONDONTWRITEBYTECODE is set: pip compiles torch when it
installs it, and an installed zoo too.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys

from benchmarks.harness import ROOT, Contender, Ratio, interleave, parser, serve, write

STATEMENTS = {
    "torch": "import torch",
    "zoo": "import zoo",
    "first model": "from zoo import build_model; "
    "build_model('gpt', vocab_size=64, d_model=64, n_layers=2, n_heads=2)",
}
"""The package is lazy: `import zoo` alone loads nothing, so what people do with it is measured as well."""


def processor_seconds(statement: str) -> float:
    """The time that a new interpreter takes of the processor for a statement, its own start included."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", statement], check=True, cwd=ROOT, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure the imports in turns."""
    options = parser(__doc__ or "")
    options.add_argument("--worker", choices=STATEMENTS)
    given = options.parse_args()
    if given.worker:
        statement = STATEMENTS[given.worker]
        processor_seconds(statement)  # writes what Python compiles
        serve({"statement": statement}, lambda: processor_seconds(statement))
        return
    contenders = [
        Contender.start(name, ["benchmarks.import_time", "--worker", name], given.keep_memory)
        for name in STATEMENTS
    ]
    interleave(contenders, given.rounds, repetitions=1, warmup=0)
    for contender in contenders:
        contender.stop()
    rows = [
        {"statement": c.about["statement"], "processor seconds": f"{statistics.median(c.rounds):.3f}"}
        for c in contenders
    ]
    torch, *ours = contenders
    command = " ".join(["python -m benchmarks.import_time", *sys.argv[1:]])
    ratios = [Ratio.of(c.about["statement"], c, torch) for c in ours]
    write(given.name or "import", "Import time", command, contenders, rows, ratios)


if __name__ == "__main__":
    main()
