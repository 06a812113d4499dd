"""The guest's end of the control channel: runs what the harness asks for. See machine.py for the other end.

JSON lines over a virtio-serial port. A request is {"id": N, "op": ..., ...}; each gets one answer with its id:

    run    argv, timeout_s            -> status, out, err    (timed_out: true where it had to be killed)
    start  argv                       -> process             (runs on; its output goes to files)
    wait   process, timeout_s         -> as for run          (still running at the end of the time: killed)
    alive  process                    -> alive
    kill   process, signal            -> {}
    hello                             -> kernel

`status` is the exit status, negative for a signal. It knows nothing of RDMA.
"""

import glob
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
import traceback

PORT_NAME = "agent"


class Processes:
    """What has been started, by number."""

    def __init__(self):
        self.started = {}

    def start(self, argv):
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
        self.started[process.pid] = (process, out, err)
        return process.pid

    def wait(self, number, timeout_s):
        process, out, err = self.started[number]
        timed_out = False
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            timed_out = True
            os.killpg(number, signal.SIGKILL)
            process.wait()
        del self.started[number]
        return {"status": process.returncode, "out": text(out), "err": text(err), "timed_out": timed_out}

    def alive(self, number):
        return self.started[number][0].poll() is None

    def kill(self, number, number_of_signal):
        if self.alive(number):
            os.killpg(number, number_of_signal)


def text(file):
    file.seek(0)
    content = file.read().decode(errors="replace")
    file.close()
    return content


def perform(processes, request):
    op = request["op"]
    if op == "hello":
        return {"kernel": os.uname().release}
    if op == "run":
        return processes.wait(processes.start(request["argv"]), request["timeout_s"])
    if op == "start":
        return {"process": processes.start(request["argv"])}
    if op == "wait":
        return processes.wait(request["process"], request["timeout_s"])
    if op == "alive":
        return {"alive": processes.alive(request["process"])}
    if op == "kill":
        processes.kill(request["process"], request["signal"])
        return {}
    raise ValueError(f"there is no operation {op}")


def open_port():
    for name in glob.glob("/sys/class/virtio-ports/*/name"):
        with open(name, encoding="utf-8") as file:
            if file.read().strip() == PORT_NAME:
                device = os.path.basename(os.path.dirname(name))
                return os.open(f"/dev/{device}", os.O_RDWR)
    raise FileNotFoundError(f"there is no virtio port {PORT_NAME}")


def main():
    port = open_port()
    processes = Processes()
    sending = threading.Lock()

    def answer(request):
        try:
            reply = perform(processes, request)
        except Exception:  # whatever goes wrong is the harness's to show
            reply = {"error": traceback.format_exc()}
        data = json.dumps(dict(reply, id=request["id"])).encode() + b"\n"
        with sending:
            while data:
                data = data[os.write(port, data) :]

    rest = b""
    while True:
        data = os.read(port, 1 << 16)
        if not data:
            # The harness has not connected yet, or is gone: the port has no other way to say so.
            time.sleep(0.05)
            continue
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            threading.Thread(target=answer, args=(json.loads(line),), daemon=True).start()


if __name__ == "__main__":
    main()
