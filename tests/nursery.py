"A process that has imported what ranks need, and forks a job for each connection: the import is most of what a short launch costs"
import gc, json, os, signal, socket
from pathlib import Path

from galvatron.runtime import launch

def preload():
    import galvatron.checkpoint.huggingface, galvatron.profile.hardware, galvatron.profile.model, galvatron.runtime.train # noqa: F401
    import torch._dynamo, torch.profiler, transformers.generation # noqa: F401
    import galvatron.models.baichuan, galvatron.models.bert, galvatron.models.t5, galvatron.models.vit # noqa: F401
    import transformers.models.gpt2.modeling_gpt2, transformers.models.llama.modeling_llama, transformers.models.t5.modeling_t5 # noqa: F401

def job(order, asked):
    "Be the job process that `run_ranks` would have started"
    os.setsid()
    asked.sendall(b'%d\n'%os.getpid())                          # from here on it can be ended as a group
    asked.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(order['env'])
    os.chdir(order['cwd'])
    out = os.open(f"{order['job']}/job.out", os.O_WRONLY|os.O_CREAT)
    for fd,to in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (out, 2)): os.dup2(fd, to)
    return launch._job_main(Path(order['job']))

def bury(sig, frame):
    "Let ended jobs go, and count their time as this process's"
    try:
        while os.waitpid(-1, os.WNOHANG)[0]: pass
    except ChildProcessError: pass

def main():
    launch.end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, bury)
    door = socket.socket(fileno=0)
    preload()
    gc.collect(); gc.freeze()
    while True:
        asked, _ = door.accept()
        with asked:
            order = asked.makefile().readline()
            if order and os.fork()==0:
                code = 1
                try: code = job(json.loads(order), asked)
                finally: os._exit(code)

if __name__=='__main__': main()
