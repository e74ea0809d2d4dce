"Fail on pages that a screen reader or a keyboard cannot use, as far as their text tells: python tools/accessible.py [_docs]"
import re, sys
from html.parser import HTMLParser
from pathlib import Path

EMPTY = {'area','base','br','col','embed','hr','img','input','link','meta','source','track','wbr'}
CONTROLS = {'input','select','textarea'}

class Page(HTMLParser):
    "Collects what is wrong with one page"
    def __init__(self, text:str):
        super().__init__()
        self.faults, self.ids, self.labels, self.controls, self.level, self.h1s, self.seen, self.title, self.open = [], [], set(), [], 0, 0, set(), '', []
        self.feed(text)
        for tag,a in self.controls:
            if not (a.get('aria-label') or a.get('aria-labelledby') or a.get('title') or a.get('id') in self.labels): self.faults.append(f'{tag} {a.get("id") or a.get("class") or ""} without a label')
        self.faults += [f'{n} twice as id' for n in sorted({n for n in self.ids if self.ids.count(n)>1})]
        if not {'html','main'}<=self.seen: self.faults.append('no main part')
        if not self.title.strip(): self.faults.append('no title')
        if self.h1s!=1: self.faults.append(f'{self.h1s} main headings')

    def handle_starttag(self, tag, attrs):
        a = dict(attrs)
        self.seen.add('main' if a.get('role')=='main' else tag)
        if 'id' in a: self.ids.append(a['id'])
        if tag=='html' and not a.get('lang'): self.faults.append('no language')
        if tag=='img' and 'alt' not in a: self.faults.append(f'picture without alt: {a.get("src", "")[:60]}')
        if tag=='label': self.labels.add(a.get('for') or (self.controls or [('', {})])[-1][1].get('id'))
        if tag in CONTROLS and a.get('type')!='hidden' and not any(o[0]=='label' for o in self.open): self.controls.append((tag, a))
        if re.fullmatch('h[1-6]', tag) and not any(o[0] in ('nav', 'aside') or o[2].get('role') in ('navigation', 'doc-toc') for o in self.open): # what names a menu is no part of the text
            if int(tag[1])>self.level+1: self.faults.append(f'{tag} after h{self.level}')
            self.level, self.h1s = int(tag[1]), self.h1s+(tag=='h1')
        if tag=='meta' and a.get('name')=='viewport' and re.search(r'user-scalable=no|maximum-scale=1\b', a.get('content', '')): self.faults.append('cannot be enlarged')
        if a.get('tabindex', '0').lstrip('-').isdigit() and int(a.get('tabindex', 0))>0: self.faults.append(f'{tag} jumps the queue of the Tab key')
        named = bool(a.get('aria-label') or a.get('title') or a.get('aria-labelledby') or a.get('aria-hidden')=='true')
        for o in self.open: o[1] |= bool(tag=='img' and a.get('alt')) or (named and tag!=o[0])
        if tag not in EMPTY: self.open.append([tag, named, a])

    def handle_data(self, data):
        if self.open and self.open[-1][0]=='title': self.title += data
        if data.strip():
            for o in self.open: o[1] = True

    def handle_endtag(self, tag):
        while self.open:
            name,said,a = self.open.pop()
            if name==tag:
                if not said and (tag=='button' or tag=='a' and 'href' in a): self.faults.append(f'{tag} without words: {a.get("href") or a.get("id") or a.get("class") or ""}')
                return

def light(colour:str)->float:
    "Relative luminance of #rgb or #rrggbb, as WCAG 2 defines it"
    h = colour.lstrip('#')
    r,g,b = (int(c, 16)/255 for c in ((x*2 for x in h) if len(h)==3 else (h[i:i+2] for i in (0, 2, 4))))
    r,g,b = (c/12.92 if c<=.03928 else ((c+.055)/1.055)**2.4 for c in (r, g, b))
    return .2126*r+.7152*g+.0722*b

def contrast(a:str, b:str)->float:
    "Of two colours: 1 to 21; small text needs 4.5"
    dark,bright = sorted((light(a), light(b)))
    return (bright+.05)/(dark+.05)

def pale(css:str, paper:str='#ffffff')->list:
    "Declared colours of text that are too near the paper's"
    found = re.findall(r'(?<![\w-])(?:color|--bs-body-color|--bs-link-color|--bs-link-hover-color|--bs-code-color|--sd-muted|--sd-inline-code)\s*:\s*(#[0-9a-fA-F]{3}(?:[0-9a-fA-F]{3})?)\b', css)
    return [f'{c} on {paper}: {contrast(c, paper):.1f}, less than 4.5' for c in dict.fromkeys(found) if contrast(c, paper)<4.5]

def pale_themes(css:str)->list:
    "The same for themes that name their colours: every colour of text on every ground"
    themes = [dict(re.findall(r'--(\w+): (#[0-9a-f]{6})', t)) for t in re.findall(r':root[^{]*\{([^}]*--bg[^}]*)\}', css)]
    pairs = [(t[ink], t[paper]) for t in themes for ink in ('text', 'muted', 'accent', 'bad', 'good') for paper in ('bg', 'surface')]
    return [f'{a} on {b}: {contrast(a, b):.1f}, less than 4.5' for a,b in pairs if contrast(a, b)<4.5]

def main(root='_docs')->int:
    top = Path(__file__).resolve().parent.parent
    pages = {p:t for p in sorted(Path(root).rglob('*.html')) if '<script type="application/json"' not in (t := p.read_text(encoding='utf-8'))} # those that a script fills need a browser
    bad = [f'{p.relative_to(root)}: {f}' for p,t in pages.items() for f in Page(t).faults]
    bad += [f'styles.css: {f}' for f in pale((top/'nbs/styles.css').read_text())] + [f'page.css: {f}' for f in pale_themes((top/'galvatron/page/page.css').read_text())]
    print('\n'.join(bad), f'{len(pages)} pages, {len(bad)} faults')
    return bool(bad)

if __name__=='__main__': sys.exit(main(*sys.argv[1:]))
