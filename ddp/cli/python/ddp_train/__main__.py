"""`python -m ddp_train ...` is `ddp-train ...`."""

import os
import sys

from . import program

if __name__ == "__main__":
    path = program()
    os.execv(path, [path, *sys.argv[1:]])
