"""Programs about the package, run from a checkout as `python -m tools.NAME`; they are not installed with it.

`selfcheck` compares this machine with ground truth, `simulate` tests whether certificates hold where the risk is known,
`speed` measures time and memory, `kills` and `leaving` show that runs survive lost processes and machines, `published`
writes the tables of published results. They import the package; the package never imports them.
"""
