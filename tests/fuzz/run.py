"""Coverage-guided fuzzing with Atheris: `python -m tests.fuzz.run TARGET… --seconds N` (docs/security/fuzzing.md).

Each target runs in its own process, since libFuzzer ends its process. What it finds is written to `build/fuzz/TARGET/`.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

WORK: Final = Path("build/fuzz")
INSIDE: Final = "--inside"  # the child's mark
MAX_BYTES: Final = 16_384  # of an input: enough for every rule but the size limits, which tests try whole
SLOW_SECONDS: Final = 10  # an input that takes longer is a finding
MEMORY_MIB: Final = 2_048


def main(arguments: list[str]) -> int:
    """0: nothing found, or (outside CI) nothing to fuzz with; 1: a finding, or a target that could not run."""
    from tests.fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"{', '.join(TARGETS)}; all when none is named")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (60)")
    given = parser.parse_args(arguments)
    if unknown := set(given.targets) - set(TARGETS):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    if importlib.util.find_spec("atheris") is None:
        print("fuzz: SKIPPED, atheris is not installed (requirements/fuzz.txt; no wheel for this Python or platform?)")
        return 1 if os.environ.get("CI") else 0
    failed = []
    for name in given.targets or TARGETS:
        if _child(name, given.seconds) != 0:
            failed.append(name)
    print(f"fuzz: FOUND something in {', '.join(failed)}, see {WORK}/" if failed else "fuzz: nothing found")
    return 1 if failed else 0


def _child(name: str, seconds: int) -> int:
    from tests.fuzz.targets import target

    corpus, found = WORK / name / "corpus", WORK / name / "found"
    for folder in (corpus, found):
        folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target(name).seeds()):
        (corpus / f"seed-{number:04}").write_bytes(seed)
    print(f"fuzz {name}: {seconds} s, {len(list(corpus.iterdir()))} inputs to begin with", flush=True)
    options = {
        "max_total_time": seconds,
        "max_len": MAX_BYTES,
        "timeout": SLOW_SECONDS,
        "rss_limit_mb": MEMORY_MIB,
        "artifact_prefix": f"{found}/",
        "print_final_stats": 1,
        "verbosity": 1,
    }
    flags = [f"-{option}={value}" for option, value in options.items()]
    command = [sys.executable, "-m", "tests.fuzz.run", INSIDE, name, str(corpus), *flags]
    return subprocess.run(command, check=False).returncode


def inside(name: str, flags: list[str]) -> None:
    """Fuzzes in this process until libFuzzer ends it."""
    import atheris

    with atheris.instrument_imports(include=["aghbus"]):
        from tests.fuzz.targets import target

        chosen = target(name)
        seeds = list(chosen.seeds())
        chosen.check(seeds[0])  # imports what is imported late
    from tests.fuzz.mutate import mutate

    def custom(data: bytes, max_size: int, seed: int) -> Any:
        if seed % 4 == 0:
            return atheris.Mutate(data, max_size)
        return mutate(data, seed, seeds)[:max_size]

    atheris.Setup([name, *flags], chosen.check, custom_mutator=custom)
    atheris.Fuzz()


if __name__ == "__main__":
    if sys.argv[1:2] == [INSIDE]:
        inside(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main(sys.argv[1:]))
