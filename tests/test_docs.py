"The pages: tables hold what the parser accepts, and printed commands do what they say"
import itertools, json, re, shlex, shutil
from pathlib import Path

import pytest
from galvatron import cli
from galvatron.plan import Plan
from galvatron.reference import argument_groups, argument_table

ROOT = Path(__file__).resolve().parent.parent
NBS = ROOT/'nbs'
FIRST = [NBS/f for f in ('index.ipynb', 'tutorials/quick_start.ipynb', 'guide/profile.ipynb', 'guide/search.ipynb', 'guide/train.ipynb')] # as one reads
PAGES = [*FIRST, *(p for p in sorted(NBS.rglob('*.ipynb')) if p not in FIRST and p.parent!=NBS)]
WORDS = json.loads((NBS/'guide/zh/words.json').read_text())
CHAPTERS = dict(profile=['profile-hardware','profile-model'], search=['search'], train=['train'])

def cells(page, kind): return [c for c in json.loads(page.read_text())['cells'] if c['cell_type']==kind]

def shown(page):
    "The tables on a page, by command"
    found = {}
    for c in cells(page, 'code'):
        if m := re.search(r"argument_table\('([\w -]+)'", ''.join(c['source'])): found[m[1]] = ''.join(c['outputs'][-1]['data']['text/markdown'])
    return found

@pytest.mark.parametrize('lang', ['', 'zh'])
@pytest.mark.parametrize('chapter', CHAPTERS)
def test_tables_are_what_the_parser_says(chapter, lang):
    tables = shown(NBS/'guide'/lang/f'{chapter}.ipynb')
    assert list(tables)==CHAPTERS[chapter]
    for command,text in tables.items(): assert text.strip()==argument_table(command, WORDS if lang else None).strip(), f'run: python tools/nbrun.py --fns nbs/guide/{lang}/{chapter}.ipynb'

def test_every_meaning_has_its_translation_and_no_more():
    used = {'argument','type','default','meaning','also','off:','list of integer'}
    for command in itertools.chain(*CHAPTERS.values()):
        for title,rows in argument_groups(command): used |= {title, *(a.meaning for a in rows), *(a.kind for a in rows)}
    assert used-set(WORDS)==set() and set(WORDS)-used==set()

def test_the_changelog_names_what_is_accepted_without_effect():
    page = ''.join(''.join(c['source']) for c in cells(NBS/'guide/changelog.ipynb', 'markdown'))
    said = set(re.findall('`(\\w+)`', re.search('accepted and have no effect.*', page)[0].partition('. ')[0]))
    assert said=={a.name for command in itertools.chain(*CHAPTERS.values()) for _,rows in argument_groups(command) for a in rows if a.meaning.startswith('Accepted')}

GUIDE = [l.partition(': ') for l in (ROOT/'tests/golden/guide_arguments.txt').read_text().splitlines() if not l.startswith('#')]

@pytest.mark.parametrize('lang', ['', 'zh'])
def test_every_argument_of_the_old_guide_is_in_the_tables(lang):
    for chapter,_,names in GUIDE:
        if chapter=='other': continue
        text = '\n'.join(shown(NBS/'guide'/lang/f'{chapter}.ipynb').values())
        there = set(re.findall(r'`(?:--)?([a-z_]+)`', text)) | set(re.findall(r'\b[A-Z_]{7,}\b', text))
        assert set(names.split())-there==set(), chapter

def test_the_list_is_that_of_the_old_guide():
    guide = ROOT/'shared/reference/user_guide_zh.txt'
    if not guide.exists(): pytest.skip('the old guide is no part of this repository')
    text = re.sub('<[^>]*>', '', guide.read_text()) # without placeholders
    known = set(' '.join(names for *_,names in GUIDE).split())
    assert {n for n in known if n not in text and n.replace('_','-') not in text}<={f'disable_{d}' for d in 'dp sdp tp vtp pp ckpt tp_consec'.split()} | {'data_path'}
    assert {n for n in re.findall(r'[A-Za-z0-9]*_[A-Za-z0-9_]*', text) if n.strip('_')}-known==set()

def commands(page):
    "Command lines in the shell blocks of a page"
    for c in cells(page, 'markdown'):
        for block in re.findall(r'```sh\n(.*?)```', ''.join(c['source']), re.S):
            for line in block.replace('\\\n', ' ').splitlines():
                if line.strip() and not line.startswith('#'): yield line.strip()

ALL = [(p, l) for p in PAGES for l in commands(p)]
SHAPE = '--hidden_size 64 --num_attention_heads 4 --vocab_size 257 --seq_length 32 --mixed_precision fp32'
TINY = {'llama-7b': f'--num_hidden_layers 4 {SHAPE}'}
SMALL = { # what is added to a printed command: the model and the machine become small, what is done stays the same
    'profile-hardware': '--num_nodes 1 --node_rank 0 --num_gpus_per_node 2 --end_mb 1 --max_call_ms 2 --device cpu --master_addr 127.0.0.1 --master_port=',
    'profile-model': f'{TINY["llama-7b"]} --max_tp_deg 2 --budget_ms 1 --profile_max_batch_size 2 --profile_min_seq_length 16 --profile_max_seq_length 32 --profile_seq_length_step 16 --device cpu',
    'search': f'{TINY["llama-7b"]} --memory_constraint 2', 'explain': f'{TINY["llama-7b"]} --memory_constraint 2 --analytic h200', 'show': TINY['llama-7b'], 'plan check': TINY['llama-7b'],
    'train': f'{TINY["llama-7b"]} --nproc 1 --num_nodes 1 --node_rank 0 --master_addr 127.0.0.1 --master_port 0 --train_iters 2 --eval_iters 0 --galvatron_config_path None --global_train_batch_size 4 --chunks -1 --pp_deg 1 --global_tp_deg 1',
    'doctor': '--num_nodes 1 --node_rank 0 --master_addr 127.0.0.1 --master_port 0 --min_disk_gib 0',
}

def galvatron_lines():
    "Each printed `galvatron` command once"
    return list(dict.fromkeys(l for _,l in ALL if l.startswith('galvatron ')))

def test_other_lines_are_known():
    "What else is printed to a shell: places to go to, installing, and the zoo's scripts, whose test is in test_scripts"
    for page,line in ALL:
        if line.startswith('galvatron '): continue
        if m := re.fullmatch(r'sh (scripts/\w+\.sh)', line): assert list((ROOT/'galvatron').glob(f'**/{m[1]}')), line
        elif line.startswith('srun '): assert 'galvatron train' in line
        elif m := re.match(r'python (tools/\w+\.py)', line): # benchmarks need GPUs: here they and their arguments exist
            source = (ROOT/m[1]).read_text()
            assert [o for o in re.findall(r'--([\w-]+)', line) if not re.search(rf"\b{o.replace('-','[-_]')}\b", source)]==[], line
        else: assert re.match(r'cd (work|\.\.)/|export [A-Z_]+=|python3 -m venv \.venv|\. \.venv/bin/activate|pip install -c constraints\.txt', line), f'{page.name}: {line}'

@pytest.mark.parametrize('line', galvatron_lines())
def test_printed_command_is_accepted(line):
    "Every argument exists and every value is allowed"
    name,words = cli.find(shlex.split(line)[1:])
    cli.parser_of(name).parse_args(words)

def test_printed_searches_find_a_plan(tmp_path, monkeypatch, capsys):
    "At their full size, by formulas where they would read profiles; a plan among those alike in all layers is quick to find, and proves enough"
    monkeypatch.chdir(tmp_path)
    for line in galvatron_lines():
        if not line.startswith('galvatron search '): continue
        words = shlex.split(re.sub(r'--pin "[^"]*"', '', line))[1:]
        assert cli.main([*words, '--search_space', '3d', *([] if '--analytic' in words else ['--analytic', 'h200'])])==0, f'{line}\n{capsys.readouterr().err}'

@pytest.fixture(scope='module')
def place(tmp_path_factory):
    "A folder with the files that the pages speak of"
    from transformers import LlamaConfig, LlamaForCausalLM
    d = tmp_path_factory.mktemp('docs')
    (d/'text.jsonl').write_text(''.join(json.dumps({'text': f'{i} green bottles hanging on the wall. '*4})+'\n' for i in range(60)))
    for prefix in 'text','text_text': assert cli.main(['preprocess-data', '--input', str(d/'text.jsonl'), '--output-prefix', str(d/'data'/prefix)])==0
    for f in (d/'data').glob('text_text_document.*'): shutil.copy(f, d/'data'/f"text_document{f.suffix}")
    Plan.from_text('1-2*-4 x4', global_bsz=32).save(d/'plan.json')
    LlamaForCausalLM(LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=64)).save_pretrained(d/'HF_DIR')
    return d

def small(name, words):
    "The words of a command with those that make it small"
    if '--analytic' in words and name.startswith('profile-'): return words
    extra = shlex.split(SMALL.get(name, ''))
    if name=='plan check' and '--model_type' not in words: extra = []
    if name=='train' and '--mock_data' in words: extra += ['--sdp', '0']
    if name=='train': extra += ['--load', 'checkpoints'] if '--load' in words else []
    return [*words, *extra]

@pytest.mark.timeout(240)
def test_printed_commands_do_what_they_say(place, monkeypatch, capfd):
    "All of them, in the order of the pages, in one process: small shapes, two ranks to measure and one to train; the quick start has a test of its own"
    monkeypatch.chdir(place)
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
    done = []
    for line in galvatron_lines():
        name,words = cli.find(shlex.split(line)[1:])
        if name in ('quickstart',) or '--help' in words: continue
        words = small(name, words)
        if name=='convert g2h':
            i = words.index('--input_path')+1
            if not Path(words[i]).exists(): words[i] = 'checkpoints' # CHECKPOINTS stands for any
            shutil.rmtree(words[words.index('--output_path')+1], ignore_errors=True)
        if name=='convert h2g': shutil.rmtree('OUT', ignore_errors=True)
        meant = (name, vars(cli.parser_of(name).parse_args(words)))
        if meant in done: continue # two printed commands may mean the same when they are small
        done.append(meant)
        rc = cli.main([*name.split(), *words])
        out = capfd.readouterr()
        assert rc==0, f'{line}\n{shlex.join(words)}\n{out.err[-2000:]}'
    assert len(done)>=20 and Path('plan.html').exists() and Path('plan.png').exists() and Path('HF_OUT/config.json').exists()
