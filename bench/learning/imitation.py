"""Runs the peers' `imitation.py` on the frames that Sconce learns from and scores: those with player control.

The unchanged peer also learns from and counts the 83 frames before, on which no input is possible. They cost almost
nothing, and made its mean 0.7 % smaller. `SCONCE_PEERS` is its folder; the arguments are its own.
"""
import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(os.environ["SCONCE_PEERS"]).resolve()))
import imitation as peer  # noqa: E402

# Labels begin at frame -122, the second recorded one; players have control from -39 on.
WITHOUT_CONTROL = 122 - 39
views = peer.views


def controlled(path, delay):
    for view in views(path, delay):
        yield {name: value if name == "game" else value[WITHOUT_CONTROL:] for name, value in view.items()}


peer.views = controlled
peer.main()
