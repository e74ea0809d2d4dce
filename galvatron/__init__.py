"""The fastest training plan that fits your GPUs: profile, cost model, search and runtime; `python -m galvatron` or `galvatron` on the command line"""

__version__ = "0.1.0"
