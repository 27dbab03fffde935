"""Lanes over files at a URL, read by this process and by a loader's workers, which are forked from it."""

from __future__ import annotations

import io
import tarfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet as written

from elastic_launcher.integrations.streams import parquet, webdataset
from elastic_launcher.torch.data.lanes import Lanes
from tests.support.thread_group import run_ranks, thread_job

COUNTS = [7, 12]
EXPECTED = list(range(7)) + list(range(100, 112))


class Handler(SimpleHTTPRequestHandler):
    """Answers for a part of a file too, as object stores do."""

    def do_GET(self) -> None:
        content = Path(self.translate_path(self.path)).read_bytes()
        first, last = 0, len(content) - 1
        if asked := self.headers.get("Range"):
            begin, _, end = asked.removeprefix("bytes=").partition("-")
            first, last = int(begin), min(int(end or last), last)
        self.send_response(206 if asked else 200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(last + 1 - first))
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[first : last + 1])

    do_HEAD = do_GET

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def tar_lanes(folder: Path, url: str) -> Lanes:
    for part, count in enumerate(COUNTS):
        with tarfile.open(folder / f"{part}.tar", "w") as tar:
            for number in range(100 * part, 100 * part + count):
                info = tarfile.TarInfo(f"{number:04}.cls")
                info.size = len(str(number))
                tar.addfile(info, io.BytesIO(str(number).encode()))
    files = [f"{url}/{part}.tar" for part in range(2)]
    counts = list(map(webdataset.count, files))
    return webdataset.lanes(files, lanes=2, counts=counts, decode=lambda found: int(found["cls"]))


def parquet_lanes(folder: Path, url: str) -> Lanes:
    for part, count in enumerate(COUNTS):
        table = pyarrow.table({"number": list(range(100 * part, 100 * part + count))})
        written.write_table(table, folder / f"{part}.parquet", row_group_size=3)
    files = [f"{url}/{part}.parquet" for part in range(2)]
    return parquet.lanes(files, lanes=2, decode=lambda row: row["number"])


@pytest.mark.parametrize("make", [tar_lanes, parquet_lanes])
@pytest.mark.parametrize("workers", [0, 2])
def test_each_sample_of_files_at_a_url_comes_once(
    tmp_path: Path, url: str, make: Callable[[Path, str], Lanes], workers: int
) -> None:
    job = run_ranks(1, lambda group: thread_job(group, 4, 4))[0]
    lanes = make(tmp_path, url)
    assert [first for lane in range(2) for first in lanes.open(lane, 0, 0)]  # the connections are there before the fork
    loader = job.dataloader(lanes, shuffle=True, num_workers=workers)
    try:
        numbers = [loader.take((0, start, min(4, 19 - start))).tolist() for start in range(0, 19, 4)]
    finally:
        loader.close()
    assert sorted(sum(numbers, [])) == EXPECTED


def test_a_url_of_an_unknown_kind_names_the_package() -> None:
    with pytest.raises(ImportError, match="s3fs"):
        webdataset.count("s3://bucket/a.tar")
