"""METHODS: one module per method, and no method's name anywhere else.

Add your own without touching the package: write a module that puts a `Method` into METHODS, and name the module in the
environment variable LDAF_BENCH_PLUGINS (several with commas). Every process of a run imports it. The same module may
add to any other registry: bounds, integrators, backbones, heads, data sets.
"""

from __future__ import annotations

import importlib
import os

from ldaf_bench.methods.deterministic import DETERMINISTIC
from ldaf_bench.methods.last_layer import LAST_LAYER
from ldaf_bench.methods.ldaf import LDAF
from ldaf_bench.methods.method import Method
from ldaf_bench.methods.pbb import PBB

METHODS: dict[str, Method] = {method.name: method for method in (LDAF, LAST_LAYER, PBB, DETERMINISTIC)}

PLUGINS = "LDAF_BENCH_PLUGINS"

for _name in filter(None, os.environ.get(PLUGINS, "").split(",")):
    importlib.import_module(_name.strip())
