"A headless Chromium without a driver: its debugging protocol over two pipes"
import base64, contextlib, json, os, select, shutil, signal, subprocess, tempfile, time
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome'))), None)
FLAGS = '--headless=new', '--no-sandbox', '--disable-gpu', '--hide-scrollbars', '--force-device-scale-factor=1', '--lang=en-US', '--no-first-run', '--disable-dev-shm-usage', '--remote-debugging-pipe'

class Browser:
    "One tab; every call has a time limit, and errors of the page are collected"
    def __init__(self, limit=60):
        self.limit, self.n, self.left, self.errors, self.profile = limit, 0, b'', [], tempfile.mkdtemp()
        (r_in, self.out), (self.inp, w_out) = os.pipe(), os.pipe()
        def ends(): # the browser reads at 3 and writes at 4
            a, b = os.dup(r_in), os.dup(w_out)
            os.dup2(a, 3); os.dup2(b, 4)
        self.process = subprocess.Popen([CHROMIUM, *FLAGS, f'--user-data-dir={self.profile}'], preexec_fn=ends, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(r_in); os.close(w_out)
        self.session = None
        target = self('Target.createTarget', url='about:blank')['targetId']
        self.session = self('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
        for domain in ('Page', 'Runtime', 'Log'): self(f'{domain}.enable')

    def __call__(self, method, **params):
        self.n += 1
        message = dict(id=self.n, method=method, params=params) | (dict(sessionId=self.session) if self.session else {})
        os.write(self.out, json.dumps(message).encode()+b'\0')
        return self.read(lambda m: m.get('id')==self.n)

    def read(self, wanted):
        "The result of the first message that is wanted"
        end = time.monotonic()+self.limit
        while True:
            while b'\0' not in self.left:
                if not select.select([self.inp], [], [], max(0, end-time.monotonic()))[0]: raise TimeoutError('the browser is silent')
                if not (more := os.read(self.inp, 1<<20)): raise EOFError('the browser ended')
                self.left += more
            text, _, self.left = self.left.partition(b'\0')
            m = json.loads(text)
            if m.get('method')=='Runtime.exceptionThrown': self.errors.append(m['params']['exceptionDetails'].get('exception', {}).get('description', str(m)))
            if m.get('method')=='Log.entryAdded' and m['params']['entry']['level']=='error': self.errors.append(m['params']['entry']['text'])
            if m.get('method')=='Runtime.consoleAPICalled' and m['params']['type']=='error': self.errors.append(str(m['params']['args']))
            if wanted(m):
                if 'error' in m: raise RuntimeError(m['error'])
                return m.get('result', m.get('params'))

    def open(self, path, width=1280, height=900, dark=False, lang='en-US', mobile=False):
        "Load a file at a size"
        self('Emulation.setDeviceMetricsOverride', width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        self('Emulation.setEmulatedMedia', features=[dict(name='prefers-color-scheme', value='dark' if dark else 'light')])
        self.errors.clear()
        self('Page.navigate', url=path if '://' in str(path) else Path(path).resolve().as_uri())
        self.read(lambda m: m.get('method')=='Page.loadEventFired')
        self.js('new Promise(r => setTimeout(r, 150))')
        return self

    def js(self, code):
        "The value of an expression (a promise is waited for)"
        out = self('Runtime.evaluate', expression=code, returnByValue=True, awaitPromise=True)
        if 'exceptionDetails' in out: raise RuntimeError(out['exceptionDetails'].get('exception', {}).get('description', str(out)))
        return out['result'].get('value')

    def hover(self, selector, n=0):
        "Move the mouse to the middle of an element"
        x, y = self.js(f'(e => {{ e.scrollIntoView({{block: "center"}}); const r = e.getBoundingClientRect(); return [r.left+r.width/2, r.top+r.height/2]; }})(document.querySelectorAll({json.dumps(selector)})[{n}])')
        self.js('new Promise(r => setTimeout(r, 100))')
        for d in (-1, 0): self('Input.dispatchMouseEvent', type='mouseMoved', x=x+d, y=y)
        return x, y

    def click(self, selector, n=0):
        x, y = self.hover(selector, n)
        for kind in ('mousePressed', 'mouseReleased'): self('Input.dispatchMouseEvent', type=kind, x=x, y=y, button='left', clickCount=1)
        self.js('new Promise(r => setTimeout(r, 100))')

    def press(self, key): [self('Input.dispatchKeyEvent', type=t, key=key, code=key) for t in ('keyDown', 'keyUp')]

    def shot(self, path, full=True):
        "A picture of the page, all of it or what the window shows"
        size = self('Page.getLayoutMetrics')['cssContentSize']
        clip = dict(clip=dict(x=0, y=0, width=size['width'], height=size['height'], scale=1), captureBeyondViewport=True) if full else {}
        Path(path).write_bytes(base64.b64decode(self('Page.captureScreenshot', format='png', **clip)['data']))
        return Path(path)

    def close(self):
        with contextlib.suppress(ProcessLookupError): os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)
        os.close(self.out); os.close(self.inp)
        shutil.rmtree(self.profile, ignore_errors=True)

    def __enter__(self): return self
    def __exit__(self, *_): self.close()
