"""Fuzzes one reader for so many seconds with atheris: python -m fuzz.campaign READER SECONDS CORPUS."""

import contextlib
import os
import sys


def main() -> None:
    """Runs until the time is up; libFuzzer prints what it did, and leaves what crashed in the corpus's folder."""
    import atheris  # in an environment of its own, see script/fuzz

    with atheris.instrument_imports(include=["bilevel._core", "bilevel.results", "bilevel.studies", "bilevel._run"]):
        from fuzz import readers
    name, seconds, corpus = sys.argv[1:4]
    os.makedirs(corpus, exist_ok=True)
    for i, seed in enumerate(readers.seeds()[name]):
        with open(os.path.join(corpus, f"seed-{i}"), "wb") as file:
            file.write(seed)
    reader = readers.READERS[name]
    options = [
        f"-max_total_time={seconds}",
        "-max_len=20000",
        "-timeout=20",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
    ]
    atheris.Setup(
        [sys.argv[0], *options, f"-artifact_prefix={corpus}/", corpus], lambda data: readers.feed(reader, data)
    )
    with contextlib.suppress(KeyboardInterrupt):
        atheris.Fuzz()


if __name__ == "__main__":
    if sys.argv[1:] == ["list"]:
        from fuzz import readers

        print("\n".join(readers.READERS))
    else:
        main()
