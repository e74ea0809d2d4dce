"What the ranks of the zoo's tests run"
import random, traceback
from pathlib import Path

from torch import distributed as dist

from equal import check_random, compare, draw, optimizer_of, reference, spec_of, train
from galvatron.checkpoint.distributed import Checkpointer
from galvatron.runtime.stage import StageModel

def check_zoo(kinds, count, folder):
    "For each family the errors of random plans, and those of a run that a checkpoint carries from one plan to another"
    out = {}
    for kind in kinds:
        out[kind] = check_random(dist.get_world_size(), count, f'zoo {kind}', [kind])
        try: out[kind]['resumed'] = dict(errors=resumed(kind, Path(folder)/kind))
        except Exception: out[kind]['resumed'] = traceback.format_exc()
        if isinstance(out[kind]['resumed'], str): break
    return out

def resumed(kind, folder):
    "Two steps under one plan, a save, and the third under another, beside three on one process"
    rng, plans = random.Random(kind), []
    while len(plans)<2 or plans[0][1]==plans[1][1]:
        case = draw(dist.get_world_size(), rng, [kind])
        if case[1].n_layers==4: plans = [*plans[:1], case]
    (_,one,options), (_,two,others) = plans
    truth = reference(kind, 24)
    model = StageModel(spec_of(kind), one, options)
    optimizer = optimizer_of(model)
    before = compare(train(model, range(2), optimizer), truth[:2])
    Checkpointer(folder, model, optimizer).save(2)
    again = StageModel(spec_of(kind), two, others, seed=5)
    optimizer = optimizer_of(again)
    Checkpointer(folder, again, optimizer).load()
    after = compare(train(again, [2], optimizer), truth[2:])
    return {k: max(before[k], after[k]) for k in before}
