#!/usr/bin/env bash
# An Arrow IPC *stream* whose schema says big-endian is valid by the format ("Endianness of the buffers" in Schema.fbs), and three readers
# of one day disagree about it: pyarrow 26.0.1 and polars 2.1.0 swap the bytes and read 1, 2, 3; arrow-ipc 60.1.0 (Rust) does not look at
# the field in its StreamReader and returns 16777216, 33554432, 50331648 without an error, although its FileReader refuses such a *file*.
# Nobody who moves from files to streams would guess that the check stays behind.
#
# Run: ./findings/arrow_rs_big_endian_streams.sh     needs python3 with venv, cargo, and the package registries; exit 1 if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf -- "$folder"' EXIT
cd -- "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check flatbuffers==25.12.19 pyarrow==26.0.1 polars==2.1.0

cat >write.py <<'PY'
"""Writes a stream of one batch of one i32 column, whose buffers are big-endian, by the tables of Schema.fbs and Message.fbs."""
import struct

import flatbuffers


def table(builder, n_slots, slots):
    builder.StartObject(n_slots)
    for put in slots:
        put()
    return builder.EndObject()


def vector(builder, item_size, items, put, align=4):
    builder.StartVector(item_size, len(items), align)
    for item in reversed(items):
        put(item)
    return builder.EndVector()


def message(kind, make_header, body):
    b = flatbuffers.Builder(256)
    header = make_header(b)
    b.Finish(table(b, 5, [lambda: b.PrependInt16Slot(0, 4, 0), lambda: b.PrependUint8Slot(1, kind, 0),
                          lambda: b.PrependUOffsetTRelativeSlot(2, header, 0), lambda: b.PrependInt64Slot(3, len(body), 0)]))
    metadata = bytes(b.Output())
    metadata += b"\0" * (-len(metadata) % 8)
    return b"\xff\xff\xff\xff" + struct.pack("<i", len(metadata)) + metadata + body


def schema(b):
    name = b.CreateString("a")
    i32 = table(b, 2, [lambda: b.PrependInt32Slot(0, 32, 0), lambda: b.PrependBoolSlot(1, True, False)])
    children = vector(b, 4, [], b.PrependUOffsetTRelative)
    field = table(b, 7, [lambda: b.PrependUOffsetTRelativeSlot(0, name, 0), lambda: b.PrependUint8Slot(2, 2, 0),
                         lambda: b.PrependUOffsetTRelativeSlot(3, i32, 0), lambda: b.PrependUOffsetTRelativeSlot(5, children, 0)])
    fields = vector(b, 4, [field], b.PrependUOffsetTRelative)
    big = 1
    return table(b, 4, [lambda: b.PrependInt16Slot(0, big, 0), lambda: b.PrependUOffsetTRelativeSlot(1, fields, 0)])


values = struct.pack(">3i", 1, 2, 3)


def batch(b):
    def pair(item):
        b.Prep(8, 16)
        b.PrependInt64(item[1])
        b.PrependInt64(item[0])

    buffers = vector(b, 16, [(0, 0), (0, len(values))], pair, 8)
    nodes = vector(b, 16, [(3, 0)], pair, 8)
    return table(b, 5, [lambda: b.PrependInt64Slot(0, 3, 0), lambda: b.PrependUOffsetTRelativeSlot(1, nodes, 0),
                        lambda: b.PrependUOffsetTRelativeSlot(2, buffers, 0)])


with open("big.arrows", "wb") as out:
    body = values + b"\0" * (-len(values) % 8)
    out.write(message(1, schema, b"") + message(3, batch, body) + b"\xff\xff\xff\xff\0\0\0\0")
PY
venv/bin/python write.py
venv/bin/python - <<'PY'
import polars
import pyarrow

read = {"pyarrow": pyarrow.ipc.open_stream("big.arrows").read_all()["a"].to_pylist(), "polars": polars.read_ipc_stream("big.arrows")["a"].to_list()}
print(read)
assert read == {"pyarrow": [1, 2, 3], "polars": [1, 2, 3]}, "pyarrow or polars reads it otherwise now"
PY

mkdir -p reads/src
cat >reads/Cargo.toml <<'TOML'
[package]
name = "reads"
version = "0.0.0"
edition = "2024"

[dependencies]
arrow-array = { version = "=60.1.0", default-features = false }
arrow-ipc = { version = "=60.1.0", default-features = false }
TOML
cat >reads/src/main.rs <<'RS'
use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_ipc::reader::StreamReader;

fn main() {
    for batch in StreamReader::try_new(std::fs::File::open("big.arrows").unwrap(), None).unwrap() {
        println!("{:?}", batch.unwrap().column(0).as_primitive::<Int32Type>().values().to_vec());
    }
}
RS
cargo build --quiet --manifest-path reads/Cargo.toml
seen=$(reads/target/debug/reads)
echo "arrow-ipc 60.1.0: $seen"
[[ $seen == "[16777216, 33554432, 50331648]" ]] || { echo "arrow-ipc reads it otherwise now"; exit 1; }
