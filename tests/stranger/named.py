"""Files that are no tables of rows: a message names what each is, and a hint says what to do."""

import bz2
import gzip
import io
import lzma
import os
import pickle
import re
import socket
import struct
import tarfile
import zipfile

import numpy as np
import scipy.io
import scipy.sparse

from . import program as of_program

LFS = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 63}7\nsize 12345\n".encode()
ROWS = b"a,b,y\n" + b"".join(b"%d,%d,%d\n" % (row, row * 7 % 5, row % 2) for row in range(40))
ZEROS = bytes(600)
# Of these the hint may say it: the file that is meant does not exist.
LINKS = ("dangling.csv", "loop.csv")
# What may be data for `data inspect`, but not for training.
NO_DATA = ("config.yaml", "config.json", "notebook.ipynb")


def zipped(*names):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, "<x/>")
    return file.getvalue()


def tar(mode):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:
        entry = tarfile.TarInfo("rows.csv")
        entry.size = len(ROWS)
        archive.addfile(entry, io.BytesIO(ROWS))
    return file.getvalue()


def saved(save, *args):
    file = io.BytesIO()
    save(file, *args)
    return file.getvalue()


def files():
    """Triples of a file's name, its bytes, and a pattern of its name in the message."""
    for ending in ("csv", "tsv", "parquet", "arrow", "feather", "jsonl", "json", "npy", "npz", "safetensors", "csv.gz", "csv.zst", "zip"):
        yield f"pointer.{ending}", LFS, r"Git LFS"
    yield "model.pkl", pickle.dumps({"rows": [1, 2, 3]}), r"pickle"
    yield "model.pt", zipped("archive/data.pkl", "archive/version"), r"PyTorch|pickle|torch\.save"
    yield "model.csv", pickle.dumps([1, 2, 3], 2), r"pickle"
    yield "book.xlsx", zipped("[Content_Types].xml", "xl/workbook.xml"), r"Excel|xlsx"
    yield "book.csv", zipped("[Content_Types].xml", "xl/workbook.xml"), r"Excel|xlsx"
    yield "book.xls", bytes.fromhex("d0cf11e0a1b11ae1") + ZEROS, r"Excel|xls|OLE|Office"
    yield "book.ods", zipped("mimetype", "content.xml"), r"OpenDocument|ods"
    yield "text.docx", zipped("[Content_Types].xml", "word/document.xml"), r"Word|docx|Office"
    # saveRDS writes gzip around "X\n", and save() "RDX3\nX\n".
    yield "frame.rds", gzip.compress(b"X\n" + struct.pack(">iii", 3, 0x040300, 0x030500) + ZEROS), r"\bR\b|rds"
    yield "plain.rds", b"X\n" + struct.pack(">iii", 3, 0x040300, 0x030500) + ZEROS, r"\bR\b|rds"
    yield "frame.RData", gzip.compress(b"RDX3\nX\n" + struct.pack(">iii", 3, 0x040300, 0x030500) + ZEROS), r"\bR\b|RData"
    yield "classic.nc", b"CDF\x01" + ZEROS, r"NetCDF"
    yield "wide.nc", b"CDF\x05" + ZEROS, r"NetCDF"
    yield "new.nc", b"\x89HDF\r\n\x1a\n" + ZEROS, r"NetCDF|HDF5"
    yield "rows.h5", b"\x89HDF\r\n\x1a\n" + ZEROS, r"HDF5"
    yield "rows.mat", b"MATLAB 5.0 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x01IM" + ZEROS, r"MATLAB|Mat"
    matrix = scipy.sparse.csr_matrix(np.eye(4))
    yield "sparse.mtx", saved(scipy.io.mmwrite, matrix), r"Matrix ?Market"
    yield "sparse.npz", saved(scipy.sparse.save_npz, matrix), r"sparse"
    yield "objects.npy", saved(np.save, np.array([{"a": 1}, None], object)), r"object|pickle"
    yield "rows.tar", tar("w"), r"\btar\b"
    yield "rows.tar.gz", tar("w:gz"), r"\btar\b"
    yield "rows.csv.gz", tar("w:gz"), r"\btar\b"
    yield "rows.vortex", b"VTXF" + ZEROS + b"\x01\x00\x10\x00VTXF", r"Vortex"
    yield "rows.lance", ZEROS + struct.pack("<HH", 0, 2) + b"LANC", r"Lance"
    yield "rows.orc", b"ORC" + ZEROS + b"\x03ORC\x10", r"ORC"
    yield "rows.avro", b"Obj\x01\x04\x16avro.schema" + ZEROS, r"Avro"
    yield "rows.sas7bdat", bytes(12) + bytes.fromhex("c2ea8160b31411cfbd92080009c7318c181f1011") + ZEROS, r"SAS"
    yield "rows.xpt", b"HEADER RECORD*******LIBRARY HEADER RECORD!!!!!!!000000000000000000000000000000  ".ljust(400), r"SAS"
    yield "rows.sav", b"$FL2@(#) SPSS DATA FILE MS Windows".ljust(200) + ZEROS, r"SPSS"
    yield "new.dta", b"<stata_dta><header><release>118</release>" + ZEROS, r"Stata"
    yield "old.dta", bytes([114, 2, 1, 0, 3, 0]) + ZEROS, r"Stata"
    yield "rows.db", b"SQLite format 3\x00" + ZEROS, r"SQLite"
    yield "rows.duckdb", bytes(8) + b"DUCK" + ZEROS, r"DuckDB"
    yield "image.png", b"\x89PNG\r\n\x1a\n" + ZEROS, r"PNG|image"
    yield "image.jpg", b"\xff\xd8\xff\xe0\x00\x10JFIF\x00" + ZEROS, r"JPEG|image"
    yield "image.csv", b"GIF89a" + ZEROS, r"GIF|image"
    yield "page.csv", b"<!DOCTYPE html>\n<html><head><title>404</title></head><body>a,b</body></html>\n", r"HTML"
    yield "page.parquet", b"<html><body>Sign in</body></html>\n", r"HTML"
    yield "answer.xml", b'<?xml version="1.0"?>\n<rows><row a="1"/></rows>\n', r"XML"
    yield "paper.pdf", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n" + ZEROS, r"PDF"
    yield "rows.svm", b"1 1:0.5 3:0.25\n0 2:1.5 3:0.5\n" * 20, r"LIBSVM|svmlight"
    yield "rows.txt", b"1 1:0.5 3:0.25\n-1 2:1.5 3:0.5\n" * 20, r"LIBSVM|svmlight"
    yield "rows.arff", b"@relation r\n@attribute a numeric\n@attribute y {p,n}\n@data\n1,p\n2,n\n", r"ARFF"
    yield "rows.json", b"[[1, 2], [3, 4]]\n", r"list|array"
    yield "notebook.ipynb", b'{"cells": [], "metadata": {}, "nbformat": 4}\n', r"notebook|JSON"
    yield "config.yaml", b"data:\n  train: rows.csv\n  target: y\n", r"TOML|YAML"
    yield "config.json", b'{"data": {"train": "rows.csv", "target": "y"}, "train": {"epochs": 3}}\n', r"TOML"
    yield "wide.csv", ROWS.decode().encode("utf-16"), r"UTF-16"
    yield "big.csv", b"\xfe\xff" + ROWS.decode().encode("utf-16-be"), r"UTF-16"
    yield "rows.csv.bz2", bz2.compress(ROWS), r"bzip2|bz2"
    yield "rows.csv.xz", lzma.compress(ROWS), r"\bxz\b"
    yield "rows.csv.lz4", b"\x04\x22\x4d\x18\x64\x40\xa7" + ZEROS, r"lz4|LZ4"
    yield "rows.csv.Z", b"\x1f\x9d\x90" + ZEROS, r"compress|\.Z"
    yield "rows.7z", b"7z\xbc\xaf\x27\x1c\x00\x04" + ZEROS, r"7-?[Zz]ip|7z"
    yield "rows.rar", b"Rar!\x1a\x07\x01\x00" + ZEROS, r"RAR|rar"
    yield "two.zip", zipped("a.csv", "b.csv"), r"2 (files|members|tables)|several|more than one|zip"
    yield "rows.tfrecord", struct.pack("<QI", 20, 7) + ZEROS, r"TFRecord"
    yield "program", b"\x7fELF\x02\x01\x01" + ZEROS, r"ELF|program|executable"
    yield "empty.csv", b"", r"empty"
    yield "empty.parquet", b"", r"empty|0 bytes|size is 0"
    yield "lines.csv", b"\n\n\n", r"empty|no (rows|column|line)|blank"
    yield "header.csv", b"a,b,y\n", r"no rows|0 rows|only a header|without rows|empty"
    yield "cut.parquet", b"PAR1" + ZEROS, r"Parquet"
    yield "cut.safetensors", struct.pack("<Q", 5000) + b"{", r"safetensors|cut off"


def places(folder):
    """Pairs of a path that is no regular file, and a pattern."""
    (folder / "nothing").mkdir()
    yield "nothing", r"empty|no (data )?files?|no rows"
    (folder / "texts").mkdir()
    (folder / "texts/README.md").write_text("# Rows\n")
    yield "texts", r"no (data )?files?|no rows"
    (folder / "dangling.csv").symlink_to("gone.csv")
    yield "dangling.csv", r"link"
    (folder / "loop.csv").symlink_to("loop.csv")
    yield "loop.csv", r"link"
    listener = socket.socket(socket.AF_UNIX)
    # The whole path may be too long for a socket.
    here = os.getcwd()
    os.chdir(folder)
    listener.bind("s.csv")
    os.chdir(here)
    listener.close()
    yield "s.csv", r"socket"
    yield "gone.csv", r"does not exist|no such file"


def judge(program, folder, name, pattern):
    commands = [["data", "inspect", name], [name, "--target", "y", "--epochs", "1", "-q"], ["data", "convert", name, "out.parquet"]]
    for words in commands[1:2] if name in NO_DATA else commands:
        ended = program.run(*words, cwd=folder).must_refuse()
        # The file's own name says nothing about what was found in it.
        line = (ended.err if name in LINKS else ended.first_line).replace(name, "FILE")
        # Case counts for the language of one letter.
        if not re.search(pattern, line, 0 if r"\bR\b" in pattern else re.IGNORECASE):
            raise of_program.Fault(f"expected {pattern} in the first line: {ended}")
    return ["named"]


def check(program, folder, seed, counts, faults):
    counts.update(named=0)
    trials = []
    for name, content, pattern in files():
        (folder / name).write_bytes(content)
        trials.append((name, pattern))
    trials += places(folder)
    (folder / "runs").mkdir()
    # Each in a folder of its own, so that no hint means a neighbor.
    for at, (name, _) in enumerate(trials):
        (folder / f"runs/{at}").mkdir()
        if name != "gone.csv":
            os.rename(folder / name, folder / f"runs/{at}/{name}")
    numbered = [(name, (folder / f"runs/{at}", pattern)) for at, (name, pattern) in enumerate(trials)]
    of_program.each(numbered, lambda name, trial: judge(program, trial[0], name, trial[1]), counts, faults)
    if len(trials) < 40:
        faults.append(f"{len(trials)} files, of at least 40")
