#!/usr/bin/env python3
"""Judge: Chromium opens the report of a run as people do, and looks at it.

    judge_report.py report.html [more.html ...] [--shots FOLDER]
    judge_report.py --self-test              prove that a bad page is found

Of each page, at 1280 px, on a small screen, and in the dark:
1. Nothing is said on the console, no script throws, and nothing is fetched but the page itself.
2. Nothing is cut off: no element is wider than the page, and no text is hidden in a box that does not scroll.
3. What a report must have is there and not empty; headings, links and ids hold together.
4. A click on a packet opens its fields, and a second one closes them; without JavaScript, too.
5. Text has contrast: 4.5 to 1 at least.

Screenshots are kept in FOLDER. Chromium is driven over a pipe: no port, no package of Python's.
Exit status 1 where a page fails or there is none.
"""

import argparse
import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time

TIMEOUT_S = 60
NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
SIZES = {"1280": (1280, 900, "light"), "dark": (1280, 900, "dark"), "small": (390, 844, "light")}

# Runs in the page; gives what is wrong back.
CUT_OFF = """
(() => {
  const wrong = [];
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) wrong.push(`the page is ${root.scrollWidth} px wide in ${root.clientWidth}`);
  const name = (e) => e.tagName.toLowerCase() + (e.id ? "#" + e.id : "") + (e.className.baseVal ?? e.className ? "." + (e.className.baseVal ?? e.className) : "");
  const scrolls = (e) => { for (; e; e = e.parentElement) if (/auto|scroll/.test(getComputedStyle(e).overflowX)) return true; return false; };
  for (const e of document.querySelectorAll("body *")) {
    if (!e.checkVisibility() || e.classList.contains("sr") || e.closest("svg")) continue;
    const style = getComputedStyle(e);
    if (e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0 && style.overflowX === "hidden") wrong.push(`${name(e)} hides a part of "${e.textContent.trim().slice(0, 40)}"`);
    const box = e.getBoundingClientRect();
    if ((box.right > root.clientWidth + 1 || box.left < -1) && box.width > 0 && !scrolls(e)) wrong.push(`${name(e)} reaches from ${Math.round(box.left)} to ${Math.round(box.right)}`);
  }
  return wrong.slice(0, 10);
})()
"""

CONTENT = """
(() => {
  const wrong = [];
  const need = (what, selector, least = 1) => {
    const found = [...document.querySelectorAll(selector)].filter((e) => e.tagName === "path" ? e.getAttribute("d") : e.textContent.trim());
    if (found.length < least) wrong.push(`${what}: ${found.length} of at least ${least}`);
  };
  need("verdict", ".verdict"); need("title", "h1"); need("figures", ".figures dd", 7);
  need("phases", "#phases tbody tr"); need("phase sections", ".phase h3", document.querySelectorAll("#phases tbody tr").length);
  need("charts", ".chart figcaption b", 3); need("curves", ".chart .curve", 3);
  need("counters", "#counters tbody tr"); need("nodes", "#world tbody tr", 2); need("text", "#text pre.copy");
  if (document.querySelector("#events table")) {
    need("ladders", ".ladder h4"); need("packets", ".rung .what", 3); need("arrow labels", ".rung svg text", 3);
    need("fields", ".rung .headers pre", 9);
  }
  if (document.querySelectorAll("h1").length !== 1) wrong.push("not one h1");
  for (const link of document.querySelectorAll("a[href]")) {
    const target = link.getAttribute("href");
    if (!target.startsWith("#") || !document.getElementById(target.slice(1))) wrong.push(`a link to ${target} leads nowhere`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  const twice = ids.filter((id, i) => ids.indexOf(id) !== i);
  if (twice.length) wrong.push(`ids twice: ${twice.slice(0, 3)}`);
  if (/undefined|NaN|Infinity/.test(document.body.innerText)) wrong.push("a value is undefined or no number");
  return wrong;
})()
"""

CONTRAST = """
(() => {
  const rgb = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = (c) => { const [r, g, b] = c.slice(0, 3).map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] === 1) return c; } return [255, 255, 255]; };
  const wrong = new Set();
  for (const e of document.querySelectorAll("body *")) {
    if (!e.checkVisibility() || ![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
    const style = getComputedStyle(e);
    const color = rgb(e.namespaceURI.endsWith("svg") ? style.fill : style.color);
    const [a, b] = [light(color), light(behind(e))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) wrong.add(`contrast ${ratio.toFixed(1)} of ${e.tagName.toLowerCase()}.${e.className.baseVal ?? e.className}`);
  }
  return [...wrong].slice(0, 10);
})()
"""


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("pages", nargs="*")
    arguments.add_argument("--shots", help="folder for screenshots")
    arguments.add_argument("--self-test", action="store_true")
    options = arguments.parse_args()
    if options.self_test:
        return self_test()
    if not options.pages:
        arguments.error("name a page, or --self-test")
    if options.shots:
        os.makedirs(options.shots, exist_ok=True)
    wrong, checks = [], 0
    with Browser() as browser:
        for path in options.pages:
            count, found = judge(browser, path, options.shots)
            checks += count
            wrong += [f"{path}: {text}" for text in found]
        version = browser.version()
    for text in wrong:
        print(text)
    print(f"JUDGE report {version}: {len(options.pages)} pages, {checks} checks, {len(wrong)} wrong")
    return 1 if wrong or not checks else 0


def judge(browser, path, shots=None):
    """Number of checks, and what is wrong with a page."""
    wrong, checks = [], 0
    stem = os.path.basename(os.path.dirname(os.path.abspath(path))) or "report"
    for name, (width, height, scheme) in SIZES.items():
        with browser.page(path, width, height, scheme) as page:
            for what, script in (("cut off", CUT_OFF), ("content", CONTENT), ("contrast", CONTRAST)):
                checks += 1
                wrong += [f"{name}: {what}: {text}" for text in page.run(script)]
            if shots:
                page.screenshot(os.path.join(shots, f"{stem}-{name}.png"))
            count, found = clicks(page)
            checks += count + 1
            wrong += [f"{name}: {text}" for text in found]
            # Every packet open, and still nothing is cut off.
            page.run("for (const e of document.querySelectorAll('details')) e.open = true; []")
            checks += 2
            wrong += [f"{name}, all open: {text}" for text in page.run(CUT_OFF) + page.run(CONTRAST)]
            wrong += [f"{name}: {text}" for text in page.complaints()]
    with browser.page(path, 1280, 900, "light", script=False) as page:
        count, found = clicks(page)
        checks += count
        wrong += [f"without JavaScript: {text}" for text in found]
    return checks, wrong


def clicks(page):
    """A click on a packet shows its fields, and the next one hides them."""
    first = "document.querySelector('.rung')"
    if not page.value(f"Boolean({first})"):
        return 0, []
    shown = f"{first}.querySelector('.fields').checkVisibility() && {first}.querySelector('.fields').innerText.includes('BTH')"
    page.value(f"{first}.closest('.phase > details').open = true")
    page.value(f"{first}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    wrong = []
    if page.value(shown):
        wrong.append("a packet's fields are shown before the click")
    page.click(f"{first}.querySelector('summary .what')")
    if not page.value(shown):
        wrong.append("a click on a packet does not show its fields")
    page.click(f"{first}.querySelector('summary .what')")
    if page.value(shown):
        wrong.append("a second click does not hide them")
    return 3, wrong


class Browser:
    """A Chromium without window, spoken to over a pipe."""

    def __init__(self):
        program = next((found for found in map(shutil.which, NAMES) if found), None)
        if not program:
            sys.exit("no Chromium here: apt-get install chromium")
        self.program = program

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        command = [self.program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        command += ["--disable-dev-shm-usage", "--hide-scrollbars", "--disable-extensions"]
        command += ["--force-color-profile=srgb", "--disable-background-networking"]
        command += [f"--user-data-dir={self.folder.name}", "--remote-debugging-pipe", "about:blank"]
        # Chromium reads from 3 and writes to 4.
        shell = f'exec 3<&{theirs_in} 4>&{theirs_out}; exec "$0" "$@"'
        self.process = subprocess.Popen(
            ["bash", "-c", shell, *command],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.input, self.output = ours_in, ours_out
        self.buffer, self.events, self.number = b"", [], 0
        return self

    def __exit__(self, *_):
        try:
            self.call("Browser.close")
        except (OSError, RuntimeError):
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.input)
        os.close(self.output)
        self.folder.cleanup()

    def call(self, method, parameters=None, session=None):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters or {}}
        if session:
            message["sessionId"] = session
        os.write(self.output, json.dumps(message).encode() + b"\0")
        answer = self.receive(lambda got: got.get("id") == self.number, method)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error'].get('message')}")
        return answer.get("result", {})

    def receive(self, wanted, what):
        """The next message that is wanted; events that come before it are kept."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            while b"\0" in self.buffer:
                text, self.buffer = self.buffer.split(b"\0", 1)
                message = json.loads(text)
                if wanted(message):
                    return message
                self.events.append(message)
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.input], [], [], left)[0]:
                raise RuntimeError(f"Chromium does not answer: {what}")
            read = os.read(self.input, 1 << 20)
            if not read:
                raise RuntimeError("Chromium has gone")
            self.buffer += read

    def version(self):
        return self.call("Browser.getVersion")["product"].split("/")[-1]

    def page(self, *arguments, **options):
        return PageView(self, *arguments, **options)


class PageView:
    """A page at one size."""

    def __init__(self, browser, path, width, height, scheme, script=True):
        self.browser, self.script = browser, script
        self.url = "file://" + os.path.abspath(path)
        self.width, self.height, self.scheme = width, height, scheme

    def __enter__(self):
        browser = self.browser
        self.target = browser.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = browser.call("Target.attachToTarget", {"targetId": self.target, "flatten": True})
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        size = {"width": self.width, "height": self.height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", size)
        media = {"features": [{"name": "prefers-color-scheme", "value": self.scheme}]}
        self.call("Emulation.setEmulatedMedia", media)
        if not self.script:
            self.call("Emulation.setScriptExecutionDisabled", {"value": True})
        browser.events.clear()
        self.call("Page.navigate", {"url": self.url})
        if not self.seen("Page.loadEventFired"):
            browser.receive(self.is_load, "loading the page")
        return self

    def __exit__(self, *_):
        self.browser.call("Target.closeTarget", {"targetId": self.target})

    def is_load(self, message):
        ours = message.get("sessionId") == self.session
        return ours and message.get("method") == "Page.loadEventFired"

    def seen(self, method):
        ours = (e for e in self.browser.events if e.get("sessionId") == self.session)
        return [event for event in ours if event.get("method") == method]

    def call(self, method, parameters=None):
        return self.browser.call(method, parameters, self.session)

    def value(self, script):
        answer = self.call("Runtime.evaluate", {"expression": script, "returnByValue": True})
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script[:60]}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def run(self, script):
        return self.value(script) or []

    def click(self, element):
        box = self.value(f"(() => {{ const b = {element}.getBoundingClientRect(); return [b.x + 8, b.y + b.height / 2]; }})()")
        for kind in ("mousePressed", "mouseReleased"):
            at = {"type": kind, "x": box[0], "y": box[1], "button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", at)

    def screenshot(self, path):
        shot = self.call("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True})
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))

    def complaints(self):
        """What the page has said, thrown or fetched."""
        wrong = [f"console: {e['params']['args']}" for e in self.seen("Runtime.consoleAPICalled")]
        wrong += [f"exception: {e['params']['exceptionDetails'].get('text')}" for e in self.seen("Runtime.exceptionThrown")]
        wrong += [f"log: {e['params']['entry'].get('text')}" for e in self.seen("Log.entryAdded")]
        asked = [e["params"]["request"]["url"] for e in self.seen("Network.requestWillBeSent")]
        wrong += [f"fetches {url[:80]}" for url in asked if url != self.url and not url.startswith("data:")]
        return wrong


GOOD = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>t</title><link rel="icon" href="data:,">
<style>body { color: #222; background: #fff } .wide { overflow-x: auto }</style></head><body>
<p class="verdict">PASSED</p><h1>t</h1><dl class="figures">""" + "<dt>a</dt><dd>1</dd>" * 7 + """</dl>
<section id="events"><table><tr><td>x</td></tr></table></section>
<section id="phases"><table><tbody><tr><td>p</td></tr></tbody></table></section>
<section class="phase"><details open><summary><h3>p</h3></summary>""" + """<figure class="chart"><figcaption><b>c</b></figcaption>
<svg><path class="curve" d="M0 0"/></svg></figure>""" * 3 + """<article class="ladder"><h4>l</h4>""" + """<details class="rung">
<summary><svg width="40" height="20"><text y="12">SEND</text></svg><span class="what">psn</span></summary>
<div class="fields"><div class="headers"><pre>Ethernet</pre><pre>IPv4</pre><pre>BTH</pre></div></div></details>""" * 3 + """
</article></details></section><section id="counters"><table><tbody><tr><td>1</td></tr></tbody></table></section>
<section id="world"><table><tbody><tr><td>a</td></tr><tr><td>b</td></tr></tbody></table></section>
<section id="text"><pre class="copy">text</pre></section></body></html>
"""


def self_test():
    """A good page passes; each kind of damage is found."""
    tail = "</body>"
    cases = {
        "the console": ("<script>console.log('x')</script>" + tail, tail, "console"),
        "an exception": ("<script>nothing()</script>" + tail, tail, "exception"),
        "a request": ("<img src='https://example.org/x.png' alt='x'>" + tail, tail, "fetches"),
        "a wide element": ("<div style='width: 2000px'>x</div>" + tail, tail, "cut off"),
        "a hidden text": ("<div style='width: 40px; overflow: hidden; white-space: nowrap'>a long line of text</div>" + tail, tail, "hides"),
        "an empty verdict": ('<p class="verdict"></p>', '<p class="verdict">PASSED</p>', "verdict"),
        "no packets": ('class="step"', 'class="rung"', "packets"),
        "a dead link": ("<a href='#gone'>x</a>" + tail, tail, "leads nowhere"),
        "two ids": ("<p id='text'>x</p>" + tail, tail, "ids twice"),
        "pale text": ("<p style='color: #ccc'>pale</p>" + tail, tail, "contrast"),
        "no number": ("<p>NaN</p>" + tail, tail, "no number"),
        "fields always open": ('<details open class="rung">', '<details class="rung">', "before the click"),
        "a dead summary": ("<style>summary { pointer-events: none }</style>" + tail, tail, "does not show"),
    }
    wrong = []
    with tempfile.TemporaryDirectory() as folder, Browser() as browser:
        path = os.path.join(folder, "page.html")

        def findings(text):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            return judge(browser, path)[1]

        wrong += [f"good: {text}" for text in findings(GOOD)]
        for what, (new, old, expected) in cases.items():
            assert old in GOOD, what
            found = findings(GOOD.replace(old, new))
            if not any(expected in text for text in found):
                wrong.append(f"{what} was put in, and the judge said {found}")
        version = browser.version()
    for text in wrong:
        print(text)
    checks = 1 + len(cases)
    print(f"JUDGE report-self-test {version}: {checks} pages, {checks} checks, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
