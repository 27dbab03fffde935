"""Lanes over files: dealt out evenly, opened at any sample, each sample once."""

from __future__ import annotations

import gzip
import io
import tarfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.integrations.streams import parquet, webdataset
from elastic_launcher.integrations.streams.shards import deal_out, lanes_of_files, shown
from elastic_launcher.torch.data.lanes import Lanes

COUNTS = [5, 0, 7, 3, 9, 4]
FILES = [f"file-{number}" for number in range(len(COUNTS))]


class Reads:
    """Reads samples (file, number); counts how often each file is opened."""

    def __init__(self, counts: list[int]) -> None:
        self.counts = counts
        self.opened: list[tuple[str, int]] = []

    def __call__(self, file: str, start: int) -> Iterator[tuple[str, int]]:
        self.opened.append((file, start))
        return iter([(file, number) for number in range(start, self.counts[FILES.index(file)])])


def lanes_of(read: Reads, seed: int | None = None) -> Lanes:
    return lanes_of_files(read, FILES, COUNTS, lanes=2, decode=None, seed=seed, shuffle_block=8)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(1, 12))
def test_each_file_goes_to_one_lane_and_lanes_have_about_as_much(counts: list[int], lanes: int) -> None:
    dealt = deal_out(counts, lanes)
    assert sorted(number for own in dealt for number in own) == list(range(len(counts)))
    lengths = [sum(counts[number] for number in own) for own in dealt]
    assert max(lengths) - min(lengths) <= max(counts)


@pytest.mark.parametrize("seed", [None, 3])
def test_a_lane_opened_anywhere_gives_the_rest(seed: int | None) -> None:
    found = lanes_of(Reads(COUNTS), seed)
    assert sum(found.lengths) == sum(COUNTS) and abs(found.lengths[0] - found.lengths[1]) <= 9
    every = []
    for lane, length in enumerate(found.lengths):
        whole = list(found.open(lane, 1, 0))
        assert len(whole) == length
        for start in range(length + 1):
            assert list(found.open(lane, 1, start)) == whole[start:]
        every += whole
    assert sorted(every) == [
        (file, number) for file, count in zip(FILES, COUNTS, strict=True) for number in range(count)
    ]


def test_files_before_the_first_sample_are_not_opened() -> None:
    read = Reads(COUNTS)
    lane = lanes_of(read)
    list(lane.open(0, 0, lane.lengths[0] - 1))
    assert len(read.opened) == 1 and read.opened[0][1] > 0


def test_files_come_in_another_order_in_each_epoch_if_they_are_shuffled() -> None:
    for seed, orders in ((3, 2), (None, 1)):
        found = {
            tuple(dict.fromkeys(file for file, _ in lanes_of(Reads(COUNTS), seed).open(0, e, 0))) for e in range(9)
        }
        assert (len(found) > 1) is (orders > 1)


@pytest.mark.parametrize(("counts", "what"), [([5, 0, 6, 3, 9, 4], "6"), ([5, 0, 8, 3, 9, 4], "more than 7")])
def test_a_file_with_another_number_of_samples_is_named(counts: list[int], what: str) -> None:
    lanes = lanes_of(Reads(counts))
    with pytest.raises(ValueError, match=f"file-2 holds {what} samples, and its count is 7: count it again"):
        for lane in range(2):
            list(lanes.open(lane, 0, 0))


@pytest.mark.parametrize(
    ("counts", "lanes", "message"),
    [
        (COUNTS[:2], 2, "counts has 2 numbers, and there are 6 files"),
        (COUNTS, 7, "lanes is 7, and there are 6 files"),
        ([1, 2, 3, -1, 1, 1], 2, r"counts\[3\] is -1"),
    ],
)
def test_what_does_not_fit_together_is_refused(counts: list[int], lanes: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lanes_of_files(Reads(COUNTS), FILES, counts, lanes=lanes, decode=None, seed=None, shuffle_block=8)


def test_ranks_compare_names_and_order_of_files_wherever_these_lie() -> None:
    """Else one that has globbed them in another order would train on some samples twice, and on others never."""

    def name(files: list[str], seed: int | None = None) -> str:
        return lanes_of_files(Reads([]), files, [4] * 3, lanes=3, decode=None, seed=seed, shuffle_block=8).name

    files = ["/data/a/0.tar", "/data/b/0.tar", "/data/b/1.tar"]
    assert name(files) != name(files[::-1]) and name(files) != name(files, 3)
    assert name(files) == name([file.replace("/data", "/node/2/copy") for file in files])
    signed = [f"https://host{file}?Signature={{}}{number}" for number, file in enumerate(files)]
    assert name(files) == name([url.format("x") for url in signed]) == name([url.format("y") for url in signed])


def test_messages_name_a_url_without_its_secrets() -> None:
    assert shown("https://user:secret@host:1/a/b.tar?Signature=secret") == "https://host:1/a/b.tar"
    assert shown("zip://a.tar::http://user:secret@host/b.zip?key=secret") == "zip://a.tar::http://host/b.zip"
    assert shown("s3://bucket/a@b.tar") == "s3://bucket/a@b.tar" and shown(Path("a?b.tar")) == "a?b.tar"


def test_an_exception_of_a_url_s_library_does_not_show_its_secrets() -> None:
    url = "http://user:1234@127.0.0.1:1/a.tar?Signature=1234"
    with pytest.raises(OSError, match="refused|Connect call failed") as found:
        webdataset.count(url)
    text = "".join(traceback.format_exception(found.value))
    assert "in reading http://127.0.0.1:1/a.tar" in text and "1234" not in text


@pytest.mark.parametrize("files", [iter(["a"]), {"a"}, {"a": 1}, b"a", None], ids=lambda files: type(files).__name__)
def test_what_is_no_list_is_refused(files: Any) -> None:
    for make in (lambda: webdataset.lanes(files, lanes=1, counts=[1]), lambda: parquet.lanes(files, lanes=1)):
        with pytest.raises(TypeError, match=r"files is of type .*; give a list, .*sorted\(files\)"):
            make()
    with pytest.raises(TypeError, match=r"counts is of type .*; give a list" if files else "counts"):
        lanes_of_files(Reads([]), ["a"], files, lanes=1, decode=None, seed=None, shuffle_block=8)
    with pytest.raises(TypeError, match=r"files\[1\] is 3; it must be a path or a URL"):
        webdataset.lanes(["a", 3], lanes=1, counts=[1, 1])  # type: ignore[list-item]


# -- tar files


def write_tar(path: Path, numbers: range, mode: str = "w") -> str:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for number in numbers:
            for extension, content in (("txt", f"text {number}"), ("CLS", str(number % 3)), ("seg.png", "pixels")):
                info = tarfile.TarInfo(f"./data.v1/{number:04}.{extension}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content.encode()))
    return str(path)


def expected(number: int) -> dict[str, Any]:
    content = {"txt": f"text {number}".encode(), "cls": str(number % 3).encode(), "seg.png": b"pixels"}
    return {"__key__": f"./data.v1/{number:04}", **content}


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_tar_files_are_read_from_any_sample_on(tmp_path: Path, mode: str) -> None:
    files = [write_tar(tmp_path / f"{n}.tar", range(10 * n, 10 * n + 4 + n), mode) for n in range(3)]
    counts = [webdataset.count(file) for file in files]
    assert counts == [4, 5, 6]
    found = webdataset.lanes(files, lanes=2, counts=counts, decode=len)
    assert found.decode is len
    every = [sample for lane in range(2) for sample in found.open(lane, 0, 0)]
    numbers = [10 * n + place for n in range(3) for place in range(4 + n)]
    assert sorted(every, key=lambda sample: sample["__key__"]) == [expected(number) for number in numbers]
    for start in range(found.lengths[0]):
        assert list(found.open(0, 0, start)) == list(found.open(0, 0, 0))[start:]


def test_a_tar_file_at_a_url(tmp_path: Path) -> None:
    file = "file://" + write_tar(tmp_path / "a.tar", range(3))
    assert webdataset.count(file) == 3
    assert list(webdataset.lanes([file], lanes=1, counts=[3]).open(0, 0, 2)) == [expected(2)]


def test_files_that_are_one_string_are_refused() -> None:
    with pytest.raises(TypeError, match=r"files is 'a.tar'; give a list of files"):
        webdataset.lanes("a.tar", lanes=1, counts=[3])


def test_tar_files_without_counts_are_refused() -> None:
    with pytest.raises(ValueError, match=r"needs counts=\[\.\.\.\].*webdataset.count\(file\) counts those of one"):
        webdataset.lanes(["a.tar"], lanes=1)


def test_a_file_that_has_become_too_short_to_be_opened_in_the_middle_is_named() -> None:
    found = lanes_of_files(lambda *_: (), FILES[:1], [20], lanes=1, decode=None, seed=None, shuffle_block=8)
    with pytest.raises(ValueError, match="file-0 holds at most 12 samples, and its count is 20"):
        list(found.open(0, 0, 12))


def test_files_may_be_paths(tmp_path: Path) -> None:
    file = Path(write_tar(tmp_path / "a.tar", range(3)))
    assert webdataset.count(file) == 3
    assert list(webdataset.lanes([file], lanes=1, counts=[3]).open(0, 0, 2)) == [expected(2)]
    with pytest.raises(TypeError, match=r"files is '.*a.tar'; give a list of files"):
        webdataset.lanes(file, lanes=1, counts=[3])  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", ["between files", "in a header", "in a file", "a header's bytes"])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_damaged_tar_file_is_named_and_not_taken_for_a_shorter_one(
    tmp_path: Path, damage: str, compressed: bool
) -> None:
    """Python's tarfile ends without a word there: the last sample would lack files, or samples be lost."""
    path = Path(write_tar(tmp_path / "a.tar", range(4)))
    whole = path.read_bytes()
    at = 1024 * 7  # the second file of the third sample: each has a header and one block
    cut = {"between files": at, "in a header": at + 100, "in a file": at + 600}.get(damage, len(whole))
    content = whole[:cut] if cut < len(whole) else whole[: at + 20] + b"\xff" + whole[at + 21 :]
    path.write_bytes(gzip.compress(content) if compressed else content)
    reads = (lambda: webdataset.count(path), lambda: list(webdataset.lanes([path], lanes=1, counts=[3]).open(0, 0, 0)))
    for read in reads:
        with pytest.raises(tarfile.ReadError, match="damaged, or was cut off|unexpected end of data") as found:
            read()
        assert found.value.__notes__ == [f"in reading {path}"]


@pytest.mark.parametrize("compressed", [False, True])
def test_a_tar_file_that_goes_on_behind_its_end_is_refused(tmp_path: Path, compressed: bool) -> None:
    """Python's tarfile ends there without a word: of files that cat has joined, it reads the first one."""
    paths = [Path(write_tar(tmp_path / name, range(4), "w:gz" if compressed else "w")) for name in "ab"]
    paths[0].write_bytes(b"".join(path.read_bytes() for path in paths))
    reads = (
        lambda: webdataset.count(paths[0]),
        lambda: list(webdataset.lanes(paths, lanes=1, counts=[4, 4]).open(0, 0, 0)),
    )
    for read in reads:
        with pytest.raises(tarfile.ReadError, match="goes on behind the mark of its end.* tar --concatenate"):
            read()


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE])
def test_a_sample_whose_file_is_a_link_is_refused(tmp_path: Path, kind: bytes) -> None:
    """It would lack that file."""
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("0.cls"), io.BytesIO())
        link = tarfile.TarInfo("1.cls")
        link.type, link.linkname = kind, "0.cls"
        tar.addfile(link)
    with pytest.raises(ValueError, match=r"1.cls is a link to 0.cls.*--hard-dereference"):
        webdataset.count(tmp_path / "a.tar")


def test_a_tar_file_in_a_compression_that_tarfile_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(range(99)))
    with pytest.raises(tarfile.ReadError) as found:
        webdataset.count(tmp_path / "a.tar")
    assert "compressed by zstd" in found.value.__notes__[0]


def test_a_sample_with_an_extension_twice_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("a.txt", "b.txt", "b.TXT"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    found = webdataset.lanes([str(tmp_path / "a.tar")], lanes=1, counts=[2])
    with pytest.raises(ValueError, match=r"a.tar holds sample 'b' with 'txt' twice"):
        list(found.open(0, 0, 0))


def test_a_tar_file_is_read_forward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is compressed begins anew for each step back."""
    path, size = tmp_path / "one.tar", 20_000
    with tarfile.open(path, "w") as tar:
        for number in range(8):
            for extension in ("jpg", "cls"):
                member = tarfile.TarInfo(f"{number}.{extension}")
                member.size = size
                tar.addfile(member, io.BytesIO(bytes([number]) * size))
    places = []

    class Watched(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            places.append(self.tell())
            return super().read(size)

    monkeypatch.setattr(webdataset, "open_file", lambda file: Watched(Path(file).read_bytes()))
    samples = list(webdataset.lanes([path], lanes=1, counts=[8]).open(0, 0, 0))
    assert [sample["cls"] for sample in samples] == [bytes([number]) * size for number in range(8)]
    in_files = [place for place in places if place > size]  # after what tells how it is compressed
    assert len(in_files) > 16 and in_files == sorted(in_files)
