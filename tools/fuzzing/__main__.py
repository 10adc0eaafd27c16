"""What `tools/fuzz` runs: one decoder in a process, under atheris, which follows the branches that bytes lead to."""

import contextlib
import subprocess
import sys
from pathlib import Path

MAX_BYTES = 8192


def main() -> int:
    match sys.argv[1:]:
        case []:
            from tests.fuzzing.decoders import decoders

            print(*sorted(decoders()), sep="\n")
            return 0
        case ["all", *rest]:
            from tests.fuzzing.decoders import decoders

            names = sorted(decoders())
            command = [sys.executable, "-m", "fuzzing"]
            ended = [subprocess.run([*command, name, *rest], check=False).returncode for name in names]
            bad = [name for name, code in zip(names, ended, strict=True) if code]
            print("nothing found" if not bad else f"found something: {', '.join(bad)}")
            return int(bool(bad))
        case [name]:
            fuzz(name, 60)
        case [name, seconds]:
            fuzz(name, int(seconds))
    return 0


def fuzz(name: str, seconds: int) -> None:
    import atheris

    with atheris.instrument_imports(include=["deltastore"]):
        from tests.fuzzing.decoders import ALLOWED, decoders

    decoder = decoders()[name]
    corpus = Path(f"fuzz-{name.replace(' ', '-').replace(',', '')}")
    corpus.mkdir(exist_ok=True)
    for place, seed in enumerate(decoder.seeds):
        (corpus / f"seed-{place}").write_bytes(seed[:MAX_BYTES])

    def one(data: bytes) -> None:
        with contextlib.suppress(*ALLOWED):
            decoder.decode(data)

    limits = [f"-max_total_time={seconds}", f"-max_len={MAX_BYTES}", "-rss_limit_mb=4096", "-timeout=30"]
    atheris.Setup([sys.argv[0], str(corpus), *limits, f"-artifact_prefix={corpus}/"], one)
    print(f"== {name}", flush=True)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
