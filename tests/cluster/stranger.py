"""A neighbour on the same network without the token: `python -m tests.cluster.stranger HEAD` tries every door.

Prints one line per door as JSON, {"door", "closed", "says"}. A door is closed if nobody listens there, or if the
answer is that the token is missing. (Ray's /metrics and health checks answer everybody; they are no doors.)
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import grpc
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc, ray_client_pb2, ray_client_pb2_grpc

SECONDS = 5


def job_api(head: str, port: int, path: str = "/api/jobs/") -> str:
    """Submit a job."""
    body = json.dumps({"entrypoint": "true"}).encode()
    request = urllib.request.Request(f"http://{head}:{port}{path}", body, {"Content-Type": "application/json"})
    return str(urllib.request.urlopen(request, timeout=SECONDS).status)


def agent(head: str, port: int) -> str:
    """Submit a job to the agent of the head, which serves the same interface."""
    return job_api(head, port, "/api/job_agent/jobs/")


def dashboard(head: str, port: int) -> str:
    """Look at the dashboard."""
    return str(urllib.request.urlopen(f"http://{head}:{port}/", timeout=SECONDS).status)


def gcs(head: str, port: int) -> str:
    """Ask the head for its nodes."""
    with grpc.insecure_channel(f"{head}:{port}") as channel:
        stub = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
        return str(stub.GetAllNodeInfo(gcs_service_pb2.GetAllNodeInfoRequest(), timeout=SECONDS))


def client(head: str, port: int) -> str:
    """Ask the server of the Ray client to connect."""
    with grpc.insecure_channel(f"{head}:{port}") as channel:
        stub = ray_client_pb2_grpc.RayletDriverStub(channel)
        return str(stub.Init(ray_client_pb2.InitRequest(), timeout=SECONDS, metadata=(("client_id", "stranger"),)))


DOORS: dict[str, tuple[int, Callable[[str, int], str]]] = {
    "job API": (8265, job_api),
    "dashboard": (8265, dashboard),
    "job agent": (52365, agent),
    "GCS": (6379, gcs),
    "Ray client": (10001, client),
}


def tried(head: str) -> Iterator[dict[str, object]]:
    """Every door once."""
    for name, (port, knock) in DOORS.items():
        try:
            says, refused = knock(head, port), False
        except urllib.error.HTTPError as error:
            says, refused = f"{error.code} {error.reason}", error.code in (401, 403)
        except grpc.RpcError as error:
            says = f"{error.code().name}: {error.details()}"
            refused = error.code() is grpc.StatusCode.UNAUTHENTICATED or "Connection refused" in says
        except OSError as error:
            says, refused = str(error), "Connection refused" in str(error)
        yield {"door": f"{name} ({port})", "closed": refused, "says": " ".join(says.split())[:200]}


def main() -> int:
    """All doors; exit code 1 if one is open."""
    assert "RAY_AUTH_TOKEN" not in os.environ
    head, rows = sys.argv[1], []
    for row in tried(head):
        print(json.dumps(row), flush=True)
        rows.append(row)
    return 0 if all(row["closed"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
