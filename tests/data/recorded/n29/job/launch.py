"""Start the ranks of one host: python launch.py N script [args]"""
import os
import socket
import subprocess
import sys


def main():
    world, script = int(sys.argv[1]), sys.argv[2:]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = dict(os.environ, WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world), OMP_NUM_THREADS="1",
                  MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    ranks = [subprocess.Popen([sys.executable, *script], env=dict(shared, RANK=str(r), LOCAL_RANK=str(r))) for r in range(world)]
    for process in ranks:
        process.wait()
    sys.exit(max(abs(process.returncode) for process in ranks))


if __name__ == "__main__":
    main()
