# ruff: noqa: E501 - an operation is a line
"""What does a script see of its files, and what do they see of it? `python tests/benchmarks/file_operations.py`.

Every operation of the list runs in plain Python on a copy of a folder and, behind each wall, in a profile of the same
folder, which lies beside the temporary directory. A line for each that the script sees otherwise, or that changes the
user's folder, and the sums; what libraries are missing is said.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from dpdoctor.spec import WALLS

# Name and code of each operation; it runs in a folder of its own, which holds a, b, d/c, old.db, link -> a; x is bytes.
PYTHON = """
write: open("a", "w").write("1"); see("a")
append: open("a", "a").write("1"); see("a")
exclusive: open("new", "x").write("1"); see("new")
update: f = open("a", "r+"); f.seek(1); f.write("1"); f.close(); see("a")
bytes path: open(b"a", "wb").write(x); see("a")
no directory: open("none/new", "w")
path write: Path("a").write_text("1"); see("a")
path touch: Path("new").touch(); see("new")
path unlink: Path("a").unlink(); names()
path rename: Path("a").rename("moved"); names()
path replace: Path("a").replace("b"); see("b"); names()
path mkdir: Path("p/q").mkdir(parents=True); names()
path symlink: Path("s").symlink_to("a"); see("s")
path hardlink: Path("h").hardlink_to("a"); see("h")
path chmod: Path("a").chmod(0o600); mode("a")
os.open: n = os.open("a", os.O_WRONLY | os.O_TRUNC); os.write(n, x); os.close(n); see("a")
os.open creat: n = os.open("new", os.O_RDWR | os.O_CREAT, 0o640); os.write(n, x); os.close(n); mode("new")
posix.open: import posix; n = posix.open("a", os.O_WRONLY | os.O_TRUNC); os.write(n, x); os.close(n); see("a")
dir_fd: n = os.open("d", os.O_RDONLY); m = os.open("c", os.O_WRONLY | os.O_TRUNC, dir_fd=n); os.write(m, x); see("d/c")
dir_fd unlink: n = os.open("d", os.O_RDONLY); os.unlink("c", dir_fd=n); names("d")
proc fd: f = open("a"); open(f"/proc/self/fd/{f.fileno()}", "w").write("1"); see("a")
dev fd: f = open("a"); open(f"/dev/fd/{f.fileno()}", "w").write("1"); see("a")
fchmod: f = open("a"); os.fchmod(f.fileno(), 0o600); mode("a")
chmod fd: f = open("a"); os.chmod(f.fileno(), 0o600); mode("a")
utime fd: f = open("a"); os.utime(f.fileno(), (5, 5)); print(os.stat("a").st_mtime)
utime: os.utime("a", (5, 5)); print(os.stat("a").st_mtime)
chmod: os.chmod("a", 0o600); mode("a")
chmod new: open("new", "w").close(); os.chmod("new", 0o600); mode("new")
truncate: os.truncate("a", 0); see("a")
ftruncate: f = open("a", "r+"); f.truncate(0); f.close(); see("a")
remove: os.remove("a"); names()
rmdir full: os.rmdir("d")
rmdir: os.remove("d/c"); os.rmdir("d"); names()
rename: os.rename("a", "z"); names(); see("z")
rename over: os.rename("a", "b"); names(); see("b")
rename directory: os.rename("d", "e"); names("e")
renames: os.renames("a", "m/n/a"); names("m/n")
link: os.link("a", "h"); see("h")
symlink: os.symlink("a", "s"); print(os.readlink("s"))
through a link: open("link", "w").write("1"); see("a")
dangling: os.symlink("nothing", "s"); open("s", "w").write("1"); see("nothing")
mkfifo: os.mkfifo("pipe"); names()
makedirs: os.makedirs("p/q/r"); names("p/q")
removedirs: os.makedirs("p/q/r"); os.removedirs("p/q/r"); names()
walk: open("d/new", "w").close(); print(sorted((r, sorted(n), sorted(f)) for r, n, f in os.walk(".")))
scandir: open("d/new", "w").write("12"); print(sorted((e.name, e.is_file(), e.stat().st_size) for e in os.scandir("d")))
listdir fd: open("d/new", "w").close(); n = os.open("d", os.O_RDONLY); print(sorted(os.listdir(n)))
glob: open("new.txt", "w").close(); print(sorted(glob.glob("*.txt")), sorted(map(str, Path(".").rglob("*"))))
access: os.remove("a"); print(os.access("a", os.R_OK), os.access("b", os.W_OK))
exists: os.remove("a"); print(os.path.exists("a"), os.path.lexists("link"), os.path.exists("link"))
chdir: os.mkdir("p"); os.chdir("p"); open("in", "w").write("1"); print(os.getcwd()[-2:], os.listdir(".")); os.chdir("..")
xattr: os.setxattr("a", "user.x", x); print(os.getxattr("a", "user.x"))
shutil.copy: shutil.copy("a", "copy"); see("copy")
shutil.copy2 over: shutil.copy2("a", "b"); see("b")
shutil.copytree: shutil.copytree("d", "e"); names("e")
shutil.move: shutil.move("a", "d"); names("d")
shutil.rmtree: shutil.rmtree("d"); names()
shutil.make_archive: shutil.make_archive("zip", "zip", "d"); names()
shutil.copymode: shutil.copymode("a", "b"); mode("b")
shutil.disk: print(shutil.disk_usage(".").total > 0)
tempfile here: f = tempfile.NamedTemporaryFile("w", dir=".", delete=False); f.write("1"); f.close(); see(f.name)
tempfile there: f = tempfile.NamedTemporaryFile("w"); f.write("1"); f.flush(); see(f.name)
temporary directory: d = tempfile.mkdtemp(dir="."); open(d + "/f", "w").write("1"); see(d + "/f")
fileinput: import fileinput; [print(line.upper(), end="") for line in fileinput.input("a", inplace=True)]; see("a")
json: json.dump({"a": 1}, open("a", "w")); print(json.load(open("a")))
pickle: import pickle; pickle.dump([1], open("a", "wb")); print(pickle.load(open("a", "rb")))
gzip: import gzip; gzip.open("a", "wt").write("1"); print(gzip.open("a", "rt").read())
zipfile: import zipfile; z = zipfile.ZipFile("new.zip", "w"); z.writestr("m", "1"); z.close(); print(zipfile.ZipFile("new.zip").namelist())
tarfile: import tarfile; t = tarfile.open("new.tar", "w"); t.add("a"); t.close(); print(tarfile.open("new.tar").getnames())
csv: import csv; csv.writer(open("a", "w")).writerow([1, 2]); see("a")
configparser: import configparser; c = configparser.ConfigParser(); c["s"] = {"k": "1"}; c.write(open("a", "w")); see("a")
logging: import logging; h = logging.FileHandler("log"); h.emit(logging.makeLogRecord({"msg": "1"})); h.close(); see("log")
rotating: import logging.handlers as l; h = l.RotatingFileHandler("a", maxBytes=1, backupCount=1); h.emit(logging_record()); h.close(); names()
shelve: import shelve; s = shelve.open("shelf"); s["a"] = 1; s.close(); print(shelve.open("shelf")["a"])
dbm.dumb: import dbm.dumb; s = dbm.dumb.open("dumb"); s["a"] = "1"; s.close(); names()
mmap: import mmap; f = open("a", "r+b"); m = mmap.mmap(f.fileno(), 0); m[0] = 49; m.flush(); m.close(); see("a")
import: open("fresh_module.py", "w").write("v = 5"); sys.path.insert(0, "."); import fresh_module; print(fresh_module.v)
runpy: open("run_it.py", "w").write("v = 5"); import runpy; print(runpy.run_path("run_it.py")["v"])
fork: p = os.fork(); p or (open("a", "w").write("1"), os._exit(0)); os.waitpid(p, 0); see("a")
pool: import multiprocessing as m; p = m.get_context("fork").Pool(1); p.apply(open_and_write, ("a",)); p.terminate(); see("a")
sqlite connect: import sqlite3; c = sqlite3.connect("old.db"); c.execute("insert into t values (2)"); c.commit(); print(c.execute("select * from t").fetchall())
sqlite Connection: import sqlite3; c = sqlite3.Connection("old.db"); c.execute("insert into t values (2)"); c.commit(); print(c.execute("select * from t").fetchall())
sqlite new: import sqlite3; c = sqlite3.connect("new.db"); c.execute("create table t (n)"); c.commit(); names()
numpy save: np.save("n.npy", np.eye(2)); print(np.load("n.npy").sum())
numpy savez: np.savez("n.npz", a=np.eye(2)); print(np.load("n.npz")["a"].sum())
numpy savetxt: np.savetxt("a", np.eye(2)); print(np.loadtxt("a").sum())
numpy tofile: np.eye(2).tofile("a"); print(np.fromfile("a").sum())
numpy memmap: m = np.memmap("m", mode="w+", shape=(4,)); m[0] = 7; m.flush(); print(np.memmap("m", mode="r")[0])
torch save: torch.save({"a": torch.ones(1)}, "a"); print(torch.load("a"))
torch mmap: torch.save({"a": torch.ones(1)}, "new.pt"); print(torch.load("new.pt", mmap=True))
torch old format: torch.save({"a": torch.ones(1)}, "new.pt", _use_new_zipfile_serialization=False); print(torch.load("new.pt"))
jit module: torch.jit.script(torch.nn.Linear(1, 1)).save("a"); print(type(torch.jit.load("a")).__name__)
jit function: torch.jit.trace(lambda v: v + 1, torch.ones(1)).save("a"); print(torch.jit.load("a")(torch.ones(1)))
chrome trace: p = torch.profiler.profile(); p.__enter__(); torch.ones(1) + 1; p.__exit__(None, None, None); p.export_chrome_trace("a"); print("traceEvents" in open("a").read())
chrome trace gz: p = torch.profiler.profile(); p.__enter__(); torch.ones(1) + 1; p.__exit__(None, None, None); p.export_chrome_trace("t.json.gz"); names()
"""
FOREIGN = """
cp: shell("cp a b"); see("b")
sh: shell("echo 1 > a"); see("a")
sh append: shell("echo 1 >> a"); see("a")
mv: shell("mv a b"); names()
rm: shell("rm a"); names()
mkdir: shell("mkdir new"); names()
ln: shell("ln -s a s"); names()
touch new: shell("touch new"); names()
chmod program: shell("chmod 600 a"); mode("a")
touch time: shell("touch -d @5 a"); print(os.stat("a").st_mtime)
truncate program: shell("truncate -s 0 a"); see("a")
tar: shell("tar cf new.tar a"); names()
dd: shell("dd if=/dev/zero of=a bs=1 count=2"); see("a")
python: shell(sys.executable + ' -S -c "open(chr(97), chr(119)).write(chr(49))"'); see("a")
child of a child: shell("sh -c 'sh -c \\"echo 1 > a\\"'"); see("a")
spawn: import multiprocessing as m; subprocess.run([sys.executable, "-S", "-c", "import os; os.truncate('a', 0)"]); see("a")
own session: subprocess.Popen(["sh", "-c", "echo 1 > a"], start_new_session=True).wait(); see("a")
reads ours: open("new", "w").write("1"); shell("cat new")
FileIO: import io; f = io.FileIO("a", "w"); f.write(x); f.close(); see("a")
from_file: torch.from_file("a", shared=True, size=1, dtype=torch.uint8).fill_(49); see("a")
sqlite attach: import sqlite3; c = sqlite3.connect(":memory:"); c.execute("attach 'old.db' as o"); c.execute("insert into o.t values (2)"); c.commit(); print(c.execute("select * from o.t").fetchall())
sqlite uri: import sqlite3; c = sqlite3.connect("file:old.db", uri=True); c.execute("insert into t values (2)"); c.commit(); print(c.execute("select * from t").fetchall())
unix socket: import socket; s = socket.socket(socket.AF_UNIX); s.bind("sock"); names()
libc open: import ctypes; l = ctypes.CDLL(None); n = l.open(b"a", os.O_WRONLY | os.O_TRUNC); l.write(n, b"1", 1); see("a")
libc unlink: import ctypes; ctypes.CDLL(None).unlink(b"a"); names()
libc rename: import ctypes; ctypes.CDLL(None).rename(b"a", b"b"); names()
libc chmod: import ctypes; ctypes.CDLL(None).chmod(b"a", 0o600); mode("a")
torchvision png: import torchvision.io as t; t.write_png(torch.zeros(3, 2, 2, dtype=torch.uint8), "a"); print(t.read_image("a").shape)
torchvision file: import torchvision.io as t; t.write_file("a", torch.ones(2, dtype=torch.uint8)); print(t.read_file("a"))
PIL: from PIL import Image; Image.new("RGB", (2, 2)).save("i.png"); print(Image.open("i.png").size)
pandas csv: import pandas as p; p.DataFrame({"a": [1]}).to_csv("a"); print(p.read_csv("a").shape)
h5py: import h5py; f = h5py.File("a", "w"); f["x"] = [1]; f.close(); print(h5py.File("a")["x"][0])
cv2: import cv2; print(cv2.imwrite("i.png", np.zeros((2, 2, 3), np.uint8))); print(cv2.imread("i.png").shape)
pyarrow: import pyarrow as p, pyarrow.parquet as q; q.write_table(p.table({"a": [1]}), "a"); print(q.read_table("a").shape)
safetensors: from safetensors.torch import save_file, load_file; save_file({"a": torch.ones(1)}, "a"); print(load_file("a"))
matplotlib: import matplotlib; matplotlib.use("agg"); import matplotlib.pyplot as p; p.plot([1]); p.savefig("f.png"); names()
posix_spawn: n = os.posix_spawn("/bin/sh", ["sh", "-c", "echo 1 > a"], os.environ); os.waitpid(n, 0); see("a")
copy_file_range: f = open("b", "rb"); g = open("a", "r+b"); os.copy_file_range(f.fileno(), g.fileno(), 5); g.close(); see("a")
sendfile: f = open("b", "rb"); g = open("a", "r+b"); os.sendfile(g.fileno(), f.fileno(), 0, 5); g.close(); see("a")
renameat2 exchange: import ctypes; ctypes.CDLL(None).renameat2(-100, b"a", -100, b"b", 2); see("a"); see("b")
fallocate: f = open("a", "r+b"); os.posix_fallocate(f.fileno(), 0, 100); f.close(); print(os.stat("a").st_size)
sqlite program: shell("sqlite3 old.db 'insert into t values (2); select * from t'")
sed: shell("sed -i s/precious/1/ a"); see("a")
git: shell("git init -q . && git -c user.name=a -c user.email=a@b add a && git ls-files"); names()
unzip: import zipfile; z = zipfile.ZipFile("z.zip", "w"); z.writestr("a", "1"); z.close(); shell("unzip -oq z.zip"); see("a")
pandas parquet: import pandas as p; p.DataFrame({"a": [1]}).to_parquet("a"); print(p.read_parquet("a").shape)
h5py append: import h5py; f = h5py.File("old.h5", "w"); f["x"] = [1]; f.close(); f = h5py.File("old.h5", "a"); f["y"] = [2]; f.close(); print(sorted(h5py.File("old.h5")))
pyarrow feather: import pyarrow as p, pyarrow.feather as q; q.write_feather(p.table({"a": [1]}), "a"); print(q.read_table("a").shape)
pyarrow stream: import pyarrow as p; f = p.OSFile("a", "wb"); f.write(b"1"); f.close(); see("a")
pyarrow delete: import pyarrow.fs as q; q.LocalFileSystem().delete_file("a"); names()
cv2 video: import cv2; w = cv2.VideoWriter("v.avi", cv2.VideoWriter_fourcc(*"MJPG"), 5, (16, 16)); w.write(np.zeros((16, 16, 3), np.uint8)); w.release(); print(os.path.getsize("v.avi") > 0)
tensorboard: from torch.utils.tensorboard import SummaryWriter; w = SummaryWriter("tb"); w.add_scalar("a", 1); w.close(); print(len(os.listdir("tb")))
"""
SCRIPT = """
import contextlib, glob, io, json, logging, os, shutil, subprocess, sys, tempfile, warnings
from pathlib import Path
import numpy as np
import torch
warnings.simplefilter("ignore")
x = b"1"

def see(path): print(open(path, "rb").read()[:20])
def names(path="."): print(sorted(os.listdir(path)))
def mode(path): print(oct(os.stat(path).st_mode))
def shell(line): print(subprocess.run(["sh", "-c", line], capture_output=True, text=True).stdout)
def logging_record(): return logging.makeLogRecord({"msg": "1"})
def open_and_write(path): open(path, "w").write("1")

home, seen = os.path.dirname(os.path.abspath(__file__)), {}
for number, (name, code) in enumerate(json.load(open(os.path.join(home, "operations.json")))):
    os.chdir(os.path.join(home, "folders", str(number)))
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            exec(code, {**globals()})
        except BaseException as error:
            print(type(error).__name__)
    seen[name] = said.getvalue()
print("SEEN" + json.dumps(seen), flush=True)
os.chdir(home)
if "train" in sys.argv:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    while True:
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
"""


def operations() -> list[tuple[str, str]]:
    lines = [line for line in f"{PYTHON}{FOREIGN}".splitlines() if line]
    return [(line.partition(": ")[0], line.partition(": ")[2]) for line in lines]


def fill(home: Path) -> None:
    for number in range(len(operations())):
        folder = home / "folders" / str(number)
        (folder / "d").mkdir(parents=True)
        for name in ("a", "b", "d/c"):
            (folder / name).write_text(f"precious {name}")
        (folder / "link").symlink_to("a")
        making = "import sqlite3; c = sqlite3.connect('old.db'); c.execute('create table t (n)'); c.commit()"
        if "old.db" in operations()[number][1]:
            subprocess.run([sys.executable, "-c", making], cwd=folder, check=True)
    (home / "operations.json").write_text(json.dumps(operations()))
    (home / "script.py").write_text(SCRIPT)


def checksums(home: Path) -> dict[str, str]:
    """Return of each path what it is, holds, and its mode and time."""
    return {str(path.relative_to(home)): checksum(path) for path in home.rglob("*") if path.name != "__pycache__"}


def checksum(path: Path) -> str:
    found = path.lstat()
    if path.is_symlink() or not path.is_file():
        return f"{found.st_mode:o}"
    return f"{found.st_mode:o} {found.st_mtime_ns} {hashlib.sha256(path.read_bytes()).hexdigest()}"


def seen(printed: str) -> dict[str, str]:
    lines = [line for line in printed.splitlines() if line.startswith("SEEN")]
    found: dict[str, str] = json.loads(lines[0].removeprefix("SEEN")) if lines else {}
    return found


def profiled(home: Path, temporary: Path, out: Path, wall: str) -> tuple[dict[str, str], dict[str, object]]:
    options = (
        "--modes",
        "single",
        "--no-control",
        "--ablations",
        "none",
        "--warmup",
        "2",
        "--steps",
        "4",
        "--rounds",
        "1",
    )
    command = [sys.executable, "-m", "dpdoctor", "profile", str(home / "script.py"), "--out", str(out), *options]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    command += ["--wall", wall, "--trace-steps", "0", "--", "train"]
    subprocess.run(command, cwd=home, env=environment, capture_output=True, check=False)
    summary = json.loads((out / "run.json").read_text())["modes"]["single"]
    return seen((out / "single/rank0/stdout.log").read_text()), summary


def show(
    title: str, plain: dict[str, str], found: dict[str, str], changed: set[str], summary: dict[str, object]
) -> None:
    print(f"\n{title}: {summary['file_protection']}; {summary['status']} {summary['reason'] or ''}")
    missing = [name for name, said in plain.items() if said == "ModuleNotFoundError\n"]
    other = [name for name in plain if name not in missing and plain[name] != found.get(name)]
    for name in other:
        print(f"  seen otherwise: {name}: {plain[name].strip()!r} in Python, {found.get(name, '').strip()!r} here")
    numbers = {name: str(number) for number, (name, _) in enumerate(operations())}
    hit = [name for name, number in numbers.items() if any(path.startswith(f"folders/{number}/") for path in changed)]
    told = " ".join(file["path"] for file in summary["files_changed"])  # type: ignore[attr-defined]
    for name in hit:
        said = "told" if f"folders/{numbers[name]}/" in told else "NOT TOLD"
        print(f"  really changed, {said}: {name}")
    done = len(plain) - len(missing)
    print(
        f"  {done} operations: {done - len(other)} seen alike, {len(hit)} really changed something; not there: {missing}"
    )


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory(prefix="file-operations-") as directory:
        root = Path(directory)
        for name in ("plain", *(f"{wall}/home" for wall in WALLS)):
            fill(root / name)
        done = subprocess.run(
            [sys.executable, "script.py"], cwd=root / "plain", capture_output=True, text=True, check=True
        )
        for wall in WALLS:
            home, temporary = root / wall / "home", root / wall / "t"
            temporary.mkdir()
            before = checksums(home)
            found, summary = profiled(home, temporary, root / f"run-{wall}", wall)
            after = checksums(home)
            changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
            show(f"--wall {wall}", seen(done.stdout), found, changed, summary)
        shutil.rmtree(root / "plain")


if __name__ == "__main__":
    main()
