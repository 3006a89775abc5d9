"""Our gateway for A2A clients: `python -m bench.peers.a2a_gateway SOCKET FOLDER PEER`, says the URL of the agent PEER.

`aghctl a2a serve` for the daemon at SOCKET, with its state in FOLDER, until standard input ends.
"""

import json
import os
import subprocess
import sys
import threading


def main(path: str, folder: str, peer: str) -> None:
    """Serve until standard input ends."""
    command = [sys.executable, "-m", "aghbus.cli", "--socket", path, "-o", "jsonl", "a2a", "serve"]
    options = ("--listen", "127.0.0.1:0", "--peer", peer, "--caller-tasks", "10000000")
    env = {**os.environ, "XDG_STATE_HOME": folder}
    with subprocess.Popen([*command, *options], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as gateway:
        assert gateway.stdout is not None
        print(json.dumps(json.loads(gateway.stdout.readline())["agents"][0]), flush=True)
        threading.Thread(target=gateway.stdout.read).start()  # its log
        sys.stdin.read()
        gateway.terminate()


if __name__ == "__main__":
    main(*sys.argv[1:])
