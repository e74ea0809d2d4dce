"Package metadata for galvatron, read from `settings.ini`"
from configparser import ConfigParser
from pathlib import Path
from setuptools import setup, find_packages

root = Path(__file__).resolve().parent
ini = ConfigParser(delimiters=['='])
ini.read(root/'settings.ini', encoding='utf-8')
cfg = ini['DEFAULT']

def reqs(key): return cfg.get(key, '').split()

setup(
    name=cfg['lib_name'], version=cfg['version'], description=cfg['description'], license='Apache-2.0',
    author=cfg['author'], author_email=cfg['author_email'], url=cfg['git_url'], keywords=cfg['keywords'],
    long_description=(root/'README.md').read_text(encoding='utf-8') if (root/'README.md').exists() else '',
    long_description_content_type='text/markdown',
    packages=find_packages(include=[cfg['lib_path'], cfg['lib_path']+'.*']),
    package_data={'':['py.typed'], 'galvatron':['model_zoo/**/*', 'profile_hardware/**/*', 'page/*']},
    python_requires='>='+cfg['min_python'],
    install_requires=reqs('requirements'),
    extras_require={'dev':reqs('dev_requirements'), 'flash':reqs('flash_requirements')},
    entry_points={'nbdev':[f"{cfg['lib_path']}={cfg['lib_path']}._modidx:d"],
                  'console_scripts':['galvatron=galvatron.cli:main']},
    zip_safe=False,
)
