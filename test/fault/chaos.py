#!/usr/bin/env python3
"""chaos.py [--long] [--seed=N] [--rounds=N] ZEROTRAIN: trainings over several hosts, with faults drawn at random.

A round draws hosts, slots, stage, launcher, checkpoints and restarts, and one or two faults, each at a moment of its
own: while hosts are reached, ranks join, the first step, training, a checkpoint, the end, a restart. Whatever comes:
the job ends in time, by the exit status that the faults explain, naming the first of them; a run that ends well has the
losses of one that nothing befell; and nothing is left on any host: no process, no port, no file, no shared memory.

A round is drawn from its seed alone, which its name has: `--seed=N` repeats it. Hosts are those of netlab.bash, in
namespaces of this test's own (network, mounts, processes), so several of these run side by side.
"""
import functools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness

N_HOSTS = 4
STEPS, SAVE_EVERY = 150, 8
QUICK_SEEDS = (2, 20, 22, 29, 49)  # restarts, two faults; none that has to be waited for
START_S = 65  # within which ssh must have logged in, and an agent have answered
MUST_S, SILENT_S, FROZEN_S = 5, 15, 15
SLACK_S = 1.5  # what a busy machine adds
SILENCE = 22  # seconds for which somebody who is to be taken for dead is silent


def option(name, default):
    return next((int(a.split("=")[1]) for a in sys.argv if a.startswith(f"--{name}=")), default)


# ---- a machine of our own ----

def enter():
    """Again, in namespaces of our own; where those cannot be made, say why."""
    if os.environ.pop("ZT_TEST_ALONE", None):
        return
    alone = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    probe = subprocess.run(alone + ["true"], capture_output=True, text=True) if os.getuid() == 0 else None
    if not probe or probe.returncode:
        harness.skip("chaos", "hosts", probe.stderr.strip() if probe else "not root")
        harness.end()
    # A shell is the first process there, which takes in orphans. What root's own shell does at a login must not matter.
    private = ["/run/netns", "/etc/netns", "/dev/shm", "/tmp"]
    if not str(harness.REPO).startswith("/root/"):
        private.append("/root")
    script = ("mount --make-rshared / && mkdir -p /run/netns /etc/netns && here=$PWD && cd \"$ZT_TEST_REPO\" && "
              f"for d in {' '.join(private)}; do mount -t tmpfs tmpfs $d || exit; done && "
              # The checkout may lie in one of them, and the shell is still in it.
              "mkdir -p \"$ZT_TEST_REPO\" && mount -c --bind . \"$ZT_TEST_REPO\" && cd \"$here\" && "
              "ip link set lo up && \"$@\"; exit $?")
    env = dict(os.environ, ZT_TEST_ALONE="1", ZT_TEST_REPO=str(harness.REPO))
    whole = subprocess.Popen(alone + ["bash", "-c", script, "bash"] + sys.argv, env=env)
    for sig in (signal.SIGINT, signal.SIGTERM):  # which unshare does not heed
        signal.signal(sig, lambda *_: whole.kill())
    sys.exit(abs(whole.wait()))


def sh(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


class Lab:
    """Hosts zt1 to zt4, and our own."""

    def __init__(self):
        self.tmp = pathlib.Path(tempfile.mkdtemp(prefix="chaos-"))
        self.dir = self.tmp / "lab"
        (self.tmp / "bin").mkdir()
        ssh = self.tmp / "bin/ssh"
        ssh.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F "{self.dir}/ssh_config" "$@"\n')
        ssh.chmod(0o755)
        os.environ["PATH"] = f"{self.tmp}/bin:{os.environ['PATH']}"
        self.up()

    def up(self):
        got = sh(str(harness.REPO / "test/fault/netlab.bash"), "up", str(self.dir), str(N_HOSTS))
        if got.returncode:
            harness.skip("chaos", "hosts", got.stdout.strip() or got.stderr.strip())
            harness.end()

    def down(self):
        sh(str(harness.REPO / "test/fault/netlab.bash"), "down", str(self.dir), str(N_HOSTS))
        shutil.rmtree(self.dir, ignore_errors=True)

    def listener(self, host):
        try:
            return int((self.dir / host / "pid").read_text())
        except (OSError, ValueError):
            return 0

    def heal(self):
        """As at the start; anew where a host's sshd is gone."""
        for i in range(1, N_HOSTS + 1):
            host = f"zt{i}"
            sh("ip", "link", "set", f"v{host}", "up")
            bridge(host, True)
            isolate([host], False)
            for pid in self.pids(host):
                if pid != self.listener(host) and not name_of(pid) == "unshare":
                    send(pid, signal.SIGKILL)
        if not all(os.path.exists(f"/proc/{self.listener(f'zt{i}')}") for i in range(1, N_HOSTS + 1)):
            self.down()
            self.up()

    @staticmethod
    def pids(host):
        net = os.stat(f"/run/netns/{host}").st_ino
        return [p for p in all_pids() if net_of(p) == net]


# ---- processes ----

def read(path):
    try:
        with open(path, "rb") as f:
            return f.read().decode(errors="replace")
    except OSError:
        return ""


def name_of(pid):
    return read(f"/proc/{pid}/comm").strip()


def net_of(pid):
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return 0


def ours(pid):
    return "zerotrain" in read(f"/proc/{pid}/cmdline")


def send(pid, sig):
    try:
        os.kill(pid, sig)
        return True
    except ProcessLookupError:
        return False


def all_pids():
    return [int(p) for p in os.listdir("/proc") if p.isdigit()]


# ---- faults ----

class Fault:
    """What befalls whom, and when. codes: exit statuses that it explains. cause: what stderr says then. lethal: the
    attempt cannot go on. asks: the job is told to end. limit_s: within which all is over. repair_s: after that it is
    undone."""

    def __init__(self, what, moment, **rest):
        self.what, self.moment = what, moment
        self.at = None
        self.codes, self.cause = {0}, ""
        self.lethal = self.asks = False
        self.hit = ""
        self.limit_s, self.repair_s, self.delay_s = MUST_S, 0.0, 0.0
        self.__dict__.update(rest)

    def __str__(self):
        return f"{self.what} at {self.moment}+{self.delay_s:.2f}"


KINDS = """
    kill-worker kill-worker kill-worker term-worker stop-worker kill-two kill-agent kill-agent term-agent pause-agent
    freeze-agent kill-front pause-front freeze-front kill-session kill-session freeze-session kill-client freeze-client
    term-client kill-sshd freeze-host cut cut blip loss apart flap int int-int term term-term hup usr1 close-stdout disk
    int-kill
""".split()
MOMENTS = ["connect", "join", "first", "train", "train", "save", "end", "late"]

ORDER = ["connect", "join", "first", "save", "train", "end", "late", "restart"]


def draw_fault(rng, r, i):
    kind = rng.choice(KINDS)
    if kind.endswith("-client") and r.launcher != "openssh":
        kind = "freeze-session" if kind == "freeze-client" else "kill-session"
    if kind == "disk" and not r.checkpoints:
        kind = "kill-worker"
    moment = rng.choice(MOMENTS + ["restart"] * 4 if i else MOMENTS)
    if moment == "restart" and not r.restarts:
        moment = "train"
    f = Fault(kind, moment, delay_s=rng.random() * rng.choice([0.02, 0.3, 1.0]))
    f.host = rng.choice(r.hosts)
    f.pick = rng.random()
    f.step = rng.randrange(3, STEPS - 5)
    if moment == "restart":
        f.delay_s = rng.random() * 4
    elif moment in ("end", "late"):
        f.delay_s *= 0.1
    preempted = {7} if r.checkpoints else set()
    lost = {1} | set(range(129, 160))
    gone = f"the agent on {f.host} (was lost|did not answer)"
    ways = {
        "kill-worker": dict(lethal=True, codes={137}, cause=r"rank \d+ on \S+ failed first: signal 9"),
        "kill-two": dict(lethal=True, codes={137}, cause=r"rank \d+ on \S+ failed first: signal 9"),
        "term-worker": dict(lethal=True, codes={143}, cause=r"rank \d+ on \S+ failed first: signal 15"),
        "stop-worker": dict(repair_s=rng.uniform(0.5, 4)),
        "kill-agent": dict(lethal=True, codes=lost, cause=gone),
        "term-agent": dict(asks=True, codes=preempted | {143}, cause="got signal 15"),
        "pause-agent": dict(repair_s=rng.uniform(0.5, 4)),
        "freeze-agent": dict(lethal=True, codes=lost | {75}, cause=f.host, limit_s=SILENT_S, repair_s=SILENCE),
        "kill-front": dict(asks=True, codes={-9}),
        "pause-front": dict(repair_s=rng.uniform(0.5, 4)),
        "freeze-front": dict(lethal=True, codes=lost, cause="the agent on", limit_s=FROZEN_S, repair_s=SILENCE),
        "kill-session": dict(lethal=True, codes=lost, cause=gone),
        "freeze-session": dict(lethal=True, codes=lost | {75}, cause=f.host, limit_s=SILENT_S, repair_s=SILENCE),
        "kill-client": dict(lethal=True, codes=lost, cause=gone),
        "term-client": dict(lethal=True, codes=lost, cause=gone),
        "freeze-client": dict(lethal=True, codes=lost | {75}, cause=f.host, limit_s=SILENT_S, repair_s=SILENCE),
        "kill-sshd": dict(lethal=True, codes=lost, cause=gone),
        "freeze-host": dict(lethal=True, codes=lost | {75}, cause=f.host, limit_s=SILENT_S, repair_s=SILENCE),
        "cut": dict(lethal=True, codes=lost | {75}, cause=f.host, limit_s=SILENT_S, repair_s=SILENCE + 8),
        "blip": dict(repair_s=rng.uniform(0.2, 1.5)),
        "loss": dict(lethal=True, codes=lost | {75}, cause=f.host, limit_s=SILENT_S, repair_s=SILENCE + 8),
        "apart": dict(lethal=True, codes=lost | {75}, cause="cannot reach each other|lost", limit_s=SILENT_S, repair_s=SILENCE + 8),
        "flap": dict(repair_s=3),
        "int": dict(asks=True, codes={130}, cause="finishing this step|ending all ranks|ended by signal 2"),
        "int-int": dict(asks=True, codes={130}, cause="ending all ranks|finishing this step|ended by signal 2"),
        "int-kill": dict(asks=True, codes={130, 137}, cause="finishing this step|ending all ranks|ended by signal 2"),
        "term": dict(asks=True, codes=preempted | {143}, cause="got signal 15|signal 15"),
        "term-term": dict(asks=True, codes=preempted | {143}, cause="got signal 15|signal 15"),
        "hup": dict(asks=True, codes=preempted | {129}, cause="got signal 1|signal 1"),
        "usr1": dict(asks=True, codes=preempted | {138}, cause="got signal 10|signal 10"),
        "close-stdout": dict(codes={0, 1, 7, 141}),
        "disk": dict(lethal=True, codes={1, 3}, cause="No space left|room"),
    }
    f.__dict__.update(ways[kind])
    early = moment in ("connect", "join")
    if early and f.lethal and f.limit_s > MUST_S:
        f.limit_s = max(f.limit_s, START_S)
    if moment == "connect" and kind == "close-stdout":
        f.codes = f.codes | {-signal.SIGPIPE}
    if early and f.asks:  # not even that it is told to end is its own affair, yet
        f.codes = f.codes | {-sig for sig in (1, 2, 10, 15)}
    if moment == "connect" and kind == "kill-session":  # one that has not logged in: it is tried again
        f.lethal, f.codes = False, f.codes | {0}
    return f


def processes(lab, r, host, names):
    return [p for p in lab.pids(host) if re.fullmatch(names, name_of(p))]


def choose(f, among):
    return among[int(f.pick * len(among))] if among else None


def whom(lab, r, f):
    """Processes that the fault is for; none: they are not there, yet."""
    what = f.what.split("-", 1)[1] if "-" in f.what else ""
    if what == "worker":
        p = choose(f, processes(lab, r, f.host, r"zerotrain-r\d+"))
        return [p] if p else []
    if what == "two":
        all_ranks = [p for h in r.hosts for p in processes(lab, r, h, r"zerotrain-r\d+")]
        return [all_ranks[0], all_ranks[-1]] if len(all_ranks) >= 2 else []
    if what == "agent":
        return processes(lab, r, f.host, "zerotrain-agent")
    if what == "session":
        return [p for p in processes(lab, r, f.host, "sshd.*") if p != lab.listener(f.host)]
    if what == "sshd":
        return processes(lab, r, f.host, "sshd.*")
    if what == "client":
        clients = {p: read(f"/proc/{p}/cmdline").split("\0") for p in all_pids() if name_of(p) == "ssh"}
        return [p for p, argv in clients.items() if f.host in argv and "-G" not in argv][:1]
    if what == "host":
        return lab.pids(f.host)
    return [r.proc.pid]


def bridge(host, on):
    """Its port leaves the bridge: nothing is heard of it, though there is a carrier."""
    sh("ip", "link", "set", f"v{host}", *(["master", "ztbr0"] if on else ["nomaster"]))


def isolate(hosts, on):
    """They do not reach each other, and everybody else."""
    for host in hosts:
        sh("bridge", "link", "set", "dev", f"v{host}", "isolated", "on" if on else "off")


def strike(lab, r, f):
    """False: not yet, there is nobody."""
    kind = f.what
    signals = {"int": [signal.SIGINT], "int-int": [signal.SIGINT] * 2, "term": [signal.SIGTERM],
               "term-term": [signal.SIGTERM] * 2, "hup": [signal.SIGHUP], "usr1": [signal.SIGUSR1]}
    if kind in signals:
        for i, sig in enumerate(signals[kind]):
            if i:
                time.sleep(f.pick * 0.5)
            send(r.proc.pid, sig)
    elif kind == "int-kill":
        ranks = processes(lab, r, f.host, r"zerotrain-r\d+")
        if not ranks:
            return False
        send(r.proc.pid, signal.SIGINT)
        time.sleep(f.pick * 0.05)
        send(choose(f, ranks), signal.SIGKILL)
    elif kind in ("cut", "blip"):
        sh("ip", "link", "set", f"v{f.host}", "down")
        r.repairs.append((time.time() + f.repair_s, lambda: sh("ip", "link", "set", f"v{f.host}", "up")))
    elif kind == "loss":
        bridge(f.host, False)
        r.repairs.append((time.time() + f.repair_s, lambda: bridge(f.host, True)))
    elif kind == "apart":
        isolate(r.hosts[:2], True)
        r.repairs.append((time.time() + f.repair_s, lambda: isolate(r.hosts[:2], False)))
    elif kind == "flap":
        now = time.time()
        for i in range(6):
            r.repairs.append((now + i * f.pick * 0.3, lambda i=i: bridge(f.host, i % 2 == 1)))
    elif kind == "close-stdout":
        r.close_stdout()
    elif kind == "disk":
        used = os.statvfs(r.ck)
        used = (used.f_blocks - used.f_bfree) * used.f_frsize
        sh("mount", "-o", f"remount,size={used + int(f.pick * 200) * 1024}", str(r.ck))
    else:
        verb = kind.split("-")[0]
        pids = whom(lab, r, f)
        if not pids:
            return False
        sig = {"kill": signal.SIGKILL, "term": signal.SIGTERM}.get(verb, signal.SIGSTOP)
        names = [name_of(p) for p in pids]
        hit = [p for p in pids if send(p, sig)]
        if not hit:
            return False
        f.hit = " ".join(names)
        if sig == signal.SIGSTOP:
            def thaw():
                for p in hit:
                    send(p, signal.SIGCONT)
            r.repairs.append((time.time() + f.repair_s, thaw))
    return True


# ---- a round ----

class Round:
    def __init__(self, lab, seed):
        rng = random.Random(seed)
        self.lab, self.seed = lab, seed
        n = rng.randint(2, N_HOSTS)
        self.slots = [rng.randint(1, 2) for _ in range(n)]
        while sum(self.slots) not in (2, 3, 4, 6, 8):
            self.slots = [rng.randint(1, 2) for _ in range(n)]
        self.hosts = [f"zt{i + 1}" for i in range(n)]
        self.stage = rng.randint(0, 3)
        self.launcher = rng.choice(["ssh", "openssh"])
        self.checkpoints = rng.random() < 0.8
        self.restarts = rng.choice([0, 0, 1, 2, 3]) if self.checkpoints else 0
        self.elastic = bool(self.restarts and rng.random() < 0.5)
        self.faults = [draw_fault(rng, self, i) for i in range(rng.choice([1, 1, 2]))]
        self.faults.sort(key=lambda f: (ORDER.index(f.moment), f.step))
        self.repairs = []
        self.dir = lab.tmp / f"round-{seed}"
        self.run, self.ck = self.dir / "run", self.dir / "ck"
        self.pipe = None

    def __str__(self):
        restarts = f" restarts {self.restarts}{' elastic' if self.elastic else ''}" if self.restarts else ""
        return (f"seed {self.seed}: {self.launcher} slots {','.join(map(str, self.slots))} stage {self.stage}"
                f"{' ckpt' if self.checkpoints else ''}{restarts}: {'; '.join(map(str, self.faults))}")

    def close_stdout(self):
        if self.pipe:
            self.pipe.close()
            self.pipe = None

    def start(self):
        self.dir.mkdir()
        self.ck.mkdir()
        if self.checkpoints:
            sh("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(self.ck))
        (self.dir / "hosts").write_text("".join(f"{h} slots={s}\n" for h, s in zip(self.hosts, self.slots)))
        options = [f"--hostfile={self.dir}/hosts", f"--launcher={self.launcher}", *common(self.run, self.stage)]
        if self.checkpoints:
            options += [f"--set=checkpoint.dir={self.ck}", f"--set=checkpoint.every_steps={SAVE_EVERY}",
                        "--set=checkpoint.keep=2"]
        if self.restarts:
            options += [f"--max_restarts={self.restarts}"]
        if self.elastic:
            options += ["--elastic"]
        self.shm_before = set(os.listdir("/dev/shm"))
        self.tmp_before = set(os.listdir("/tmp"))
        self.began = time.time()
        env = dict(os.environ, ZT_TEST_RETURN_S="60")
        self.err = open(self.dir / "err", "wb")
        out = subprocess.PIPE if any(f.what == "close-stdout" for f in self.faults) else open(self.dir / "out", "wb")
        self.proc = subprocess.Popen([harness.ZT, *options, str(self.lab.tmp / "tiny.yaml")], stdout=out,
                                     stderr=self.err, stdin=subprocess.DEVNULL, env=env, start_new_session=True)
        if self.proc.stdout:
            self.pipe = self.proc.stdout
            os.set_blocking(self.pipe.fileno(), False)

    def ended(self):
        now = time.time()
        for when, repair in list(self.repairs):
            if when <= now:
                repair()
                self.repairs.remove((when, repair))
        if self.pipe:
            try:
                self.pipe.read()
            except (OSError, ValueError):
                pass
        return self.proc.poll() is not None

    def sleep(self, seconds):
        end = time.time() + seconds
        while time.time() < end and not self.ended():
            time.sleep(min(0.01, max(0, end - time.time())))

    def step(self):
        return read(self.run / "metrics.jsonl").count('"loss"')

    def says(self, pattern):
        return re.search(pattern, read(self.dir / "err"))

    def has_come(self, f):
        lab = self.lab
        if f.moment == "connect":
            return True
        if f.moment == "join":
            return any(processes(lab, self, h, r"zerotrain-(agent|r\d+)") for h in self.hosts)
        if f.moment == "first":
            return bool(processes(lab, self, f.host, r"zerotrain-r\d+"))
        if f.moment == "train":
            return self.step() >= f.step
        if f.moment == "save":
            saves = any(self.ck.glob("tmp-step-*"))
            return self.step() >= f.step and saves or self.step() >= f.step + 2 * SAVE_EVERY
        if f.moment == "end":
            return self.step() >= STEPS - 1
        if f.moment == "late":
            return self.step() >= STEPS
        return self.says(r"restart \d+ of|trying again")

    def befall(self, f):
        """Waits for the fault's moment, and for who is struck."""
        while not self.has_come(f):
            if self.ended():
                return
            time.sleep(0.005)
        self.sleep(f.delay_s)
        while not self.ended():
            if strike(self.lab, self, f):
                f.at = time.time()
                return
            time.sleep(0.01)

    # ---- what must hold ----

    def struck(self):
        return [f for f in self.faults if f.at]

    def deadline(self):
        """When it must have ended, at the latest."""
        struck = self.struck()
        if not struck:
            return self.began + 60
        grace = max(f.at + f.limit_s for f in struck)
        for f in struck:
            if f.what == "freeze-front":
                grace = max(grace, f.at + f.repair_s + f.limit_s)
            elif f.repair_s and not f.lethal:
                grace = max(grace, f.at + f.repair_s + MUST_S)
        goes_on = not any(f.lethal or f.what == "kill-front" or f.asks and f.moment != "connect" for f in struck) or \
            self.restarts
        if goes_on:
            grace += 60 + self.restarts * 45
        return grace + SLACK_S

    def wait(self):
        end = self.deadline()
        while not self.ended() and time.time() < end:
            time.sleep(0.01)
        self.end = time.time()
        if self.proc.poll() is None:
            held = [f"{p} {name_of(p)} {read(f'/proc/{p}/wchan')}" for p in all_pids() if ours(p)]
            why = f"it did not end within {self.end - max([f.at for f in self.struck()] or [self.began]):.1f} s: {held}"
            send(self.proc.pid, signal.SIGKILL)
            self.proc.wait()
            raise AssertionError(why)
        return self.proc.returncode

    def left(self):
        cut = {f.host for f in self.struck() if f.what in ("cut", "loss", "apart")} if self.repairs else set()
        left = []
        for i in range(1, N_HOSTS + 1):
            host = f"zt{i}"
            for p in self.lab.pids(host):
                name = name_of(p)
                if p != self.lab.listener(host) and name and name not in ("unshare", "sh") and \
                        (ours(p) or host not in cut) and read(f"/proc/{p}/cmdline"):
                    left.append(f"{host}: {p} {name}")
            ports = sh("ip", "netns", "exec", host, "ss", "-Htln").stdout
            left += [f"{host}: port {line.split()[3]}" for line in ports.splitlines() if ":22 " not in line]
        for p in all_pids():
            if p != self.proc.pid and (name_of(p) == "ssh" or ours(p)) and "chaos.py" not in read(f"/proc/{p}/cmdline"):
                if f"here: {p} {name_of(p)}" not in left and not any(f": {p} " in x for x in left):
                    left.append(f"here: {p} {name_of(p)}")
        left += [f"/dev/shm/{x}" for x in set(os.listdir("/dev/shm")) - self.shm_before]
        left += [f"/tmp/{x}" for x in set(os.listdir("/tmp")) - self.tmp_before]
        return left

    def nothing_left(self):
        limit = MUST_S
        frozen = [f for f in self.struck() if f.repair_s > MUST_S]
        start = self.end
        for f in frozen:
            if f.what in ("cut", "loss", "apart"):
                limit = max(limit, SILENT_S + 5)  # there it has to be found out, too
            else:
                start, limit = max(start, f.at + f.repair_s), max(limit, FROZEN_S)
        end = start + limit + SLACK_S
        while (left := self.left()) and time.time() < end:
            self.ended()
            time.sleep(0.05)
        assert not left, f"left {time.time() - start:.1f} s after the end: {left}"
        self.left_s = time.time() - self.end

    def explain(self, code):
        struck = self.struck()
        if code == 0:
            certain = [f for f in struck if f.lethal and f.moment in ("connect", "join", "first")
                       and f.what not in ("disk", "freeze-front")]
            assert self.restarts or not certain, "exit status 0, though it was struck"
            self.same_training()
            return
        assert struck, f"exit status {code}, though nothing befell it"
        codes = set().union(*(f.codes for f in struck))
        assert code in codes, f"exit status {code}, not of {sorted(codes)}"
        if code < 0:
            return
        serious = [f for f in struck if f.cause]
        causes = [f.cause for f in serious if self.restarts or f.at <= serious[0].at + serious[0].limit_s]
        assert not causes or self.says("|".join(causes)), f"stderr does not say {' or '.join(causes)}"
        self.used_restarts(code)

    def used_restarts(self, code):
        """Not where it was told to end, a fault lasts, or it had not begun."""
        lasting = ("disk", "close-stdout", "kill-sshd", "apart")  # each attempt meets them anew
        if not self.restarts or any(f.asks or f.what in lasting or f.moment in ("connect", "join", "first")
                                    for f in self.struck()):
            return
        n = len([f for f in self.struck() if f.lethal])
        assert n > self.restarts, f"exit status {code} after {n} faults, with {self.restarts} restarts"

    def same_training(self):
        summary = json.loads(read(self.run / "summary.json") or "{}")
        want = reference(str(self.lab.tmp), sum(self.slots), self.stage)
        losses = loss_lines(self.run)
        steps = [s for s, _ in losses]
        lacks = self.says(r"lacks steps (\d+) to (\d+):")
        lost = range(int(lacks[1]), int(lacks[2]) + 1) if lacks else ()
        want_steps = [s for s in range(1, STEPS + 1) if s not in lost]
        assert steps == want_steps, "metrics.jsonl does not count every step once"
        off = [s for s, loss in losses if abs(loss - want[1][s - 1][1]) > 1e-3]
        assert not off, f"losses of steps {off[:5]} are not those of the run that nothing befell"
        left_out = self.says("is left out from now on")
        assert left_out or summary.get("digest") == want[0], "other bits than those of the run that nothing befell"

    def play(self):
        try:
            self.start()
            for f in self.faults:
                self.befall(f)
            code = self.wait()
            self.nothing_left()
            self.explain(code)
            self.report(code)
        except AssertionError as e:
            said = read(self.dir / "err").splitlines()
            log = "".join(f"\n    {line}" for line in said[-25:])
            when = "; ".join(f"{f} -> {f.at - self.began:.2f} s {f.hit}" if f.at else f"{f} -> never"
                             for f in self.faults)
            raise AssertionError(f"{e}\n    {self}\n    {when}{log}") from None
        finally:
            if self.proc.poll() is None:
                send(self.proc.pid, signal.SIGKILL)
                self.proc.wait()
            for _, repair in self.repairs:
                repair()
            self.close_stdout()
            self.lab.heal()
            if self.checkpoints:
                sh("umount", "-l", str(self.ck))
            shutil.rmtree(self.dir, ignore_errors=True)

    def report(self, code):
        if "--verbose" not in sys.argv:
            return
        last = (read(self.dir / "err").strip().splitlines() or [""])
        shown = next((x for x in last if re.search("failed first|was lost:|did not answer|stopped by", x)), last[-1])
        when = ", ".join(f"{f.at - self.began:.1f}" if f.at else "never" for f in self.faults)
        after = self.end - max([f.at for f in self.struck()] or [self.began])
        print(f"  {self}\n     struck at {when}; {code} after {after:.1f} s, nothing left after {self.left_s:.1f} s: "
              f"{shown[:200]}", flush=True)


def common(run, stage):
    return ["--device=cpu", f"--log_dir={run}", f"--set=zero_optimization.stage={stage}", f"--set=train.steps={STEPS}"]


def loss_lines(run):
    found = []
    for line in read(run / "metrics.jsonl").splitlines():
        line = json.loads(line)
        if line.get("loss") is not None:
            found.append((line["step"], line["loss"]))
    return found


@functools.lru_cache(maxsize=None)
def reference(tmp, ranks, stage):
    """Digest and losses of a run on one host."""
    run = pathlib.Path(tmp) / f"whole-{ranks}-{stage}"
    got = sh(harness.ZT, *common(run, stage), f"--num_gpus={ranks}", f"{tmp}/tiny.yaml")
    assert got.returncode == 0, f"a run that nothing befell: {got.stderr}"
    return json.loads(read(run / "summary.json"))["digest"], loss_lines(run)


def main():
    os.chdir(harness.REPO)
    enter()
    lab = Lab()
    (lab.tmp / "tiny.yaml").write_text(f"""
model: {{model_type: gpt2, n_layer: 1, n_head: 2, n_embd: 32, n_positions: 32, vocab_size: 256}}
data: {{train: {harness.REPO}/LICENSE, seq_len: 32}}
train_batch_size: 24
train_micro_batch_size_per_gpu: 1
parallel: {{threads: 1}}
""")
    first = option("seed", 1)
    seeds = QUICK_SEEDS
    if harness.LONG or option("rounds", 0) or option("seed", 0):
        seeds = range(first, first + option("rounds", 100 if not option("seed", 0) else 1))
    for seed in seeds:
        harness.test("chaos", f"seed {seed}", lambda: Round(lab, seed).play())
    lab.down()
    harness.end()


main()
