"""python -m benchmarks.spark STEP ...: the pipeline's figures, each beside its peer in the same run."""

import sys
from importlib import import_module

STEPS = ("enter", "generate", "ingest", "kernel", "order", "spans", "sweep", "verify")
"""Each names a module here."""

if __name__ == "__main__":
    step = sys.argv[1] if len(sys.argv) > 1 else ""
    if step not in STEPS:
        sys.exit(f"python -m benchmarks.spark {'|'.join(STEPS)} ...")
    sys.argv = [f"benchmarks.spark {step}", *sys.argv[2:]]
    import_module(f"benchmarks.spark.{step}").main()
