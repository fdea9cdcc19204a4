"""search_table.py OUT LIMIT...: the table of tests/gpu/search.sh, from the journals alone (standard library only)."""
import json
import os
import sys

GIB = 1 << 30


def journal(path):
    """Finished trials and the last recommendation."""
    trials, last = [], None
    with open(path) as lines:
        for line in lines:
            entry = json.loads(line)
            if entry.get("entry") == "trial_ended":
                trials.append(entry["record"])
            elif entry.get("entry") == "recommended":
                last = entry["recommendation"]
    return trials, last


def describe(recommendation):
    point = recommendation["recommended"] or {}
    return f"{recommendation['status']} {point.get('batch_size')} x {point.get('accumulation_steps')}"


def row(out, limit):
    staged, answer = journal(os.path.join(out, f"staged-{limit}", "journal.jsonl"))
    grid, best = journal(os.path.join(out, f"grid-{limit}", "journal.jsonl"))
    before = [t for t in staged if t["spec"]["purpose"] != "soak"]
    out_of_memory = sum(t["outcome"]["outcome"] == "out_of_memory" for t in staged)
    seconds = sum(t["seconds"] for t in before)
    rates = {(t["spec"]["point"]["batch_size"], t["spec"]["purpose"] == "soak"): t["measurement"]["samples_per_second"]
             for t in grid if t["measurement"]}
    found = answer["measured"]["samples_per_second"]
    grid_best = best["measured"]["samples_per_second"]
    print(f"{limit:>7} | {describe(answer)} | {found:.2f} | {describe(best)} | {grid_best:.2f} | {100 * found / grid_best:.1f} % | "
          f"{len(before)} | {out_of_memory} | {seconds:.1f} | {answer['forecast']}")
    for trial in staged:
        point, measured = trial["spec"]["point"], trial["measurement"]
        figures = "-"
        if measured:
            figures = (f"{measured['samples_per_second']:.2f} samples/s, peak allocated {measured['peak_allocated_bytes'] / GIB:.3f}, "
                       f"reserved {measured['peak_reserved_bytes'] / GIB:.3f} GiB, {measured['step_ms']['p50']:.1f} ms")
        print(f"          {trial['spec']['purpose']:<12} {point['batch_size']:>3} x {point['accumulation_steps']:<3} "
              f"{trial['outcome']['outcome']:<14} {trial['seconds']:6.1f} s  {figures}")


print("limit | staged | samples/s | grid | samples/s | ratio | trials before the soak | out of memory | seconds | forecast")
for name in sys.argv[2:]:
    try:
        row(sys.argv[1], name)
    except Exception as error:  # a table with a hole says more than none
        print(f"{name}: {error!r}")
