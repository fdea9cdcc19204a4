"""The table of tests/gpu/commands.sh, from journals and logs alone (standard library only).

    commands_table.py sizes OUT WORKLOAD     the batch sizes that anybody answered with
    commands_table.py table OUT
"""
import json
import os
import sys

GIB = 1 << 30


def lines(path):
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return [json.loads(line) for line in file if line.strip()]


def study(out, name):
    """Finished trials with their warnings, and the last recommendation."""
    trials, last = [], None
    for entry in lines(os.path.join(out, name, "journal.jsonl")):
        if entry.get("entry") == "trial_ended":
            trials.append(entry["record"])
        elif entry.get("entry") == "recommended":
            last = entry["recommendation"]
    return trials, last


def sizes(out, workload):
    found = {peer["batch_size"] for peer in lines(os.path.join(out, "peers.jsonl"))
             if peer["workload"] == workload and "batch_size" in peer}
    _, answer = study(out, workload)
    if answer and answer["recommended"]:
        found.add(answer["recommended"]["batch_size"])
    print(*sorted(found))


def tune_row(out, run):
    name = run["name"]
    trials, answer = study(out, name)
    point, measured = answer["recommended"] or {}, answer["measured"] or {}
    before = [trial for trial in trials if trial["spec"]["purpose"] != "soak"]
    known = sum(trial["seconds"] for trial in before if trial["spec"]["purpose"] in ("smallest", "probe"))
    print(f"tune {name} | {answer['status']} {point.get('batch_size')} x {point.get('accumulation_steps')} | "
          f"{run['seconds']:.1f} s, forecast after {known:.1f} s, before the soak {sum(t['seconds'] for t in before):.1f} s | "
          f"{len(trials)} trials, {answer['provenance']['oom_trials']} out of memory | "
          f"{measured.get('samples_per_second', 0):.1f} samples/s | {answer['forecast']} | {point.get('allocator')}")
    for trial in trials:
        point, measured = trial["spec"]["point"], trial["measurement"]
        figures = "-"
        if measured:
            figures = (f"{measured['samples_per_second']:.2f} samples/s, {measured['step_ms']['p50']:.1f} ms, allocated "
                       f"{measured['peak_allocated_bytes']}, reserved {measured['peak_reserved_bytes']}")
        print(f"    {trial['spec']['purpose']:<12} {point['batch_size']:>3} x {point['accumulation_steps']:<3} "
              f"{point['loader_workers']} workers {point.get('alloc_conf') or '':<34} {trial['outcome']['outcome']:<14} "
              f"{trial['seconds']:6.1f} s  {figures}")
        if trial["outcome"]["outcome"] not in ("completed", "out_of_memory"):
            print("        ", trial["outcome"])
    for warning in answer["warnings"]:
        print("    warning:", warning)


def table(out):
    for run in lines(os.path.join(out, "runs.jsonl")):
        try:
            tune_row(out, run)
        except Exception as error:  # a table with a hole says more than none
            print(f"{run}: {error!r}")
    for peer in lines(os.path.join(out, "peers.jsonl")):
        if "samples_per_second" in peer:
            print(f"{peer['workload']} {peer['finder']}: {peer['samples_per_second']:.1f} samples/s, "
                  f"{peer['peak_reserved_bytes'] / GIB:.2f} GiB")
        elif peer.get("failed"):
            print(f"{peer['workload']} {peer['finder']}: FAILED")
        else:
            print(f"{peer['workload']} {peer['finder']}: batch {peer['batch_size']} after {peer['seconds']:.1f} s, "
                  f"{peer['tried']} tried, {peer['out_of_memory']} out of memory")


if __name__ == "__main__":
    sizes(*sys.argv[2:]) if sys.argv[1] == "sizes" else table(*sys.argv[2:])
