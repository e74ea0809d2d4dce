import sys
from galvatron.cli import main
from galvatron.runtime.launch import end_rank, is_rank

if __name__ == '__main__': (end_rank if is_rank() else sys.exit)(main())
