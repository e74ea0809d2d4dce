"The page of a searched plan, which the site links, and a picture of it: python tools/example_page.py OUT.html [PNG WIDTH HEIGHT]"
import sys
from pathlib import Path

from galvatron.model_spec import ModelSpec
from galvatron.profile.files import HardwareProfile, ModelProfile
from galvatron.search.engine import search
from galvatron.search.space import SearchArgs
from galvatron.show import page

def example():
    "Llama-7B on eight A100s by formula, 24 GiB of each: the searched plan, and the best that treats all layers alike"
    spec = ModelSpec.from_size('llama_hf', 'llama-7b')
    args = SearchArgs(memory_constraint=24, settle_bsz=64, sp_space='tp+sp', sequence_parallel=True)
    found = search(spec, HardwareProfile.analytic('a100'), ModelProfile.analytic(spec, 'a100'), args)
    return page(found, found.baselines()['best uniform plan'], names=('searched', 'best uniform'))

def main(out, png=None, width=1280, height=900):
    made = example().save(out)
    if not png: return
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent/'tests'))
    from browser import Browser
    with Browser() as b:
        b.open(made, int(width), int(height)).js('choose(0)')
        b.shot(png, full=False)

if __name__=='__main__': main(*sys.argv[1:])
