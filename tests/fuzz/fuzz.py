"""`make fuzz`: every target and every state machine, each for SECONDS; failing inputs are written to fuzz-findings/.

The byte parsers run under atheris (libFuzzer) where it is installed (the extra `fuzz`; it is built with clang), else
under our own runner. The hypothesis tests run in rounds, each with a new seed, until their time is up.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
FINDINGS = ROOT / "fuzz-findings"

MODELS = {
    "session": "tests/hostile/test_hostile_session_model.py",
    "groups": "tests/fuzz/test_fuzz_session.py",
    "milter": "tests/intake/milter/test_milter_fuzz.py",
    "milter-frames": "tests/intake/milter/test_milter_codec.py",
    "multipart": "tests/fuzz/test_fuzz_upload.py",
    "address": "tests/intake/smtp/test_smtp_paths.py",
    "config": "tests/fuzz/test_fuzz_config.py",
    "inspection": "tests/service/test_service_inspection.py::test_no_bytes_whatever_break_the_inspection",
}
COMPARISONS = ("mime_readers",)  # with other programs: tests/mime


def main() -> int:
    from tests.fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="time for each target")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    parser.add_argument("--own", action="store_true", help="use our own runner even if atheris is installed")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("only", nargs="*", help=f"of {', '.join([*TARGETS, *MODELS, *COMPARISONS])}")
    options = parser.parse_args()
    if options.worker:
        under_atheris(options.worker, options.seconds, options.seed)
    unknown = set(options.only) - {*TARGETS, *MODELS, *COMPARISONS}
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    own = options.own or importlib.util.find_spec("atheris") is None
    print(f"seed {options.seed}, {'our own runner' if own else 'atheris'}, {options.seconds:g} s for each target")
    broken = 0
    for name in options.only or [*TARGETS, *MODELS, *COMPARISONS]:
        if name in COMPARISONS:
            good = run_readers(name, options.seconds, options.seed)
        elif name in MODELS:
            good = run_model(name, options.seconds, options.seed)
        else:
            good = (run_own if own else run_atheris)(name, options.seconds, options.seed)
        broken += not good
    print(f"{broken} broken" if broken else "nothing found")
    return 1 if broken else 0


def report(name: str, count: str, good: bool) -> bool:
    print(f"{name:22} {count:>28}  {'ok' if good else 'BROKEN'}", flush=True)
    return good


def run_own(name: str, seconds: float, seed: int) -> bool:
    from tests.fuzz.runner import Broken, Run, smaller

    run = Run(name, random.Random(seed))
    try:
        run.replay()
        run.mutate(seconds)
    except Broken as broken:
        data = smaller(broken)
        path = FINDINGS / name / hashlib.sha256(data).hexdigest()[:16]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        print(f"{broken}\n  {path.relative_to(ROOT)}: {data[:200]!r}")
        return report(name, f"{run.inputs} inputs", False)
    return report(name, f"{run.inputs} inputs", True)


def run_atheris(name: str, seconds: float, seed: int) -> bool:
    """Runs in a separate process, because libFuzzer exits the process it runs in."""
    command = [
        sys.executable,
        "-m",
        "tests.fuzz.fuzz",
        "--worker",
        name,
        "--seconds",
        str(seconds),
        "--seed",
        str(seed),
    ]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    count = re.findall(r"(?m)^(?:Done |#)(\d+)", done.stderr)
    if done.returncode:
        print(done.stdout[-2000:], done.stderr[-3000:])
    return report(name, f"{count[-1] if count else '?'} inputs", done.returncode == 0)


def under_atheris(name: str, seconds: float, seed: int) -> None:
    import atheris

    for module in [
        name for name in sys.modules if name == "bridge" or name.startswith(("bridge.", "tests.fuzz.targets"))
    ]:
        del sys.modules[module]  # imported again below, instrumented
    with atheris.instrument_imports(include=["bridge"]):
        targets = importlib.import_module("tests.fuzz.targets")  # `from tests.fuzz import` would return the old one
    findings = FINDINGS / name
    findings.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as grown:
        options = [
            f"-max_total_time={int(seconds)}",
            f"-seed={seed}",
            "-max_len=12000",
            "-timeout=10",
            "-rss_limit_mb=1024",
        ]
        atheris.Setup(
            [sys.argv[0], *options, f"-artifact_prefix={findings}/", grown, str(targets.CORPUS / name)],
            targets.TARGETS[name],
        )
        atheris.Fuzz()


def run_model(name: str, seconds: float, seed: int) -> bool:
    end, examples, rounds = time.monotonic() + seconds, 0, 0
    while rounds == 0 or time.monotonic() < end:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=short", "-p", "no:cacheprovider", MODELS[name]]
        command += [f"--hypothesis-seed={seed + rounds}", "--hypothesis-show-statistics", "--hypothesis-profile=long"]
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(FINDINGS / "hypothesis"),
        }
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        rounds += 1
        examples += sum(map(int, re.findall(r"- (\d+) passing", done.stdout)))  # state machines are not counted
        if done.returncode:
            print(done.stdout[-6000:], done.stderr[-2000:])
            return report(name, f"{examples} examples, {rounds} rounds", False)
    return report(name, f"{examples} examples, {rounds} rounds", True)


def run_readers(name: str, seconds: float, seed: int) -> bool:
    """Malformed mails through our reader and all others that are installed; each new class of finding once."""
    from tests.mime.compare import Survey
    from tests.mime.grammar import generate
    from tests.mime.readers import installed

    readers, missing = installed()
    print(f"{name}: {', '.join(reader.name for reader in readers)}")
    for reader, reason in missing.items():
        print(f"{name}: without {reader}: {reason}")
    survey, end, first = Survey(readers), time.monotonic() + seconds, seed * 10_000_000
    try:
        while survey.mails == 0 or time.monotonic() < end:
            for finding in survey.run([generate(first + survey.mails + number) for number in range(100)]):
                path = FINDINGS / name / hashlib.sha256(finding.case.mail).hexdigest()[:16]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(finding.case.mail)
                print(f"  {path.relative_to(ROOT)} seed {finding.case.seed}: {finding.reader} {finding.detail}")
                print(f"    {finding.case.mutations}", flush=True)
    finally:
        for reader in readers:
            reader.close()
    return report(name, f"{survey.mails} mails, {len(survey.classes)} classes", not survey.classes)


if __name__ == "__main__":
    sys.exit(main())
