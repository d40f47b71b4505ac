"""Slices of several campaigns, each in a fork of this process, so that the library is imported once.

`python tests/campaigns/slice.py mutate:160 kill:14 load:8 pages:4` prints their tables and ends with status 1 unless the last four columns of all are zero.
"""
import argparse
import importlib
import os
import sys


def forked(campaign, seed, cases):
    "The exit status of a campaign that runs in a process of its own."
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        campaign(seed, cases).end()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("slices", nargs="+", help="<campaign>:<cases>")
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    slices = [text.split(":") for text in a.slices]
    modules = [importlib.import_module(name) for name, _ in slices]
    statuses = []
    for (name, cases), module in zip(slices, modules):
        print(f"## {name}")
        statuses.append(forked(module.campaign, a.seed, int(cases)))
        print(f"status {statuses[-1]}")
    sys.exit(any(statuses))
