"""Starting or joining a Ray, with one sentence where Ray would end with a traceback."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator

from ray.exceptions import AuthenticationError

from ldaf_bench.messages import clean_reason
from ldaf_bench.stages.session import ResourceError, cluster_address, ray_session

NO_TOKEN = (
    "Ray refuses, because its token is missing here or is another one: copy ~/.ray/auth_token of the cluster's head to "
    "this machine, and set RAY_AUTH_MODE=token."
)


@contextlib.contextmanager
def joined(address: str | None = None, *, verbose: bool = False) -> Iterator[None]:
    """`ray_session`; a Ray that cannot be had is a `ResourceError`."""
    where = cluster_address(address)
    with contextlib.ExitStack() as stack:
        try:
            knock(where)
            stack.enter_context(ray_session(address, verbose=verbose))
        except AuthenticationError as error:
            raise ResourceError(NO_TOKEN) from error
        except Exception as error:  # Ray raises all kinds, a bare Exception among them
            what = f"There is no Ray to join at {where}" if where else "Ray cannot be started"
            raise ResourceError(f"{what} ({clean_reason(error)}).") from error
        yield


def knock(where: str | None) -> None:
    """An `OSError` if nobody listens there. Ray itself would end this process after a minute."""
    if where and (parts := re.fullmatch(r"([^/:]+):(\d+)", where)):
        socket.create_connection((parts[1], int(parts[2])), timeout=10).close()
