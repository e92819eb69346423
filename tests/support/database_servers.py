"""Real PostgreSQL and MariaDB servers for tests: on loopback, as an unprivileged user, gone with the test
run.

Programs that the machine has are used; else Debian's packages are unpacked into a folder of the user's own
below the temporary one, which takes no root rights and happens once. ``initdb`` and ``mariadbd`` refuse to
run as root, so a test run of root's runs them as ``nobody``; that is why the folders are not below the clone
or pytest's. A machine where neither works fails the tests that need a server: they say what is missing, and
are not skipped.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

#: Server and what it links against, of which a small machine may have none. Found by Debian's own
#: dependencies.
PACKAGES = {
    "postgresql": (
        "postgresql-15",
        "postgresql-client-15",
        "libpq5",
        "libllvm14",
        "libicu72",
        "libldap-2.5-0",
    ),
    "mariadb": ("mariadb-server-core", "liburing2", "libaio1", "libnuma1"),
    "prometheus": ("prometheus",),  # no database of applications', but fetched and kept as those are
}
PROGRAM = {
    "postgresql": "usr/lib/postgresql/*/bin/initdb",
    "mariadb": "usr/sbin/mariadbd",
    "prometheus": "usr/bin/promtool",
}
START_S = 60.0
DOWNLOAD_S = 240.0
_PR_SET_PDEATHSIG = 1
#: Loaded here: nothing may be imported between fork and exec.
_LIBC = ctypes.CDLL(None, use_errno=True)


class NoServer(AssertionError):
    """This machine cannot run the database; the text says why."""


def _dies_with_the_tests() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _unprivileged() -> dict[str, Any]:
    """Arguments of Popen."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def programs(kind: str) -> Path:
    """The root of a tree with the server's programs: the machine's, or an unpacked one."""
    if next(Path("/").glob(PROGRAM[kind]), None) is not None:
        return Path("/")
    cache = Path(tempfile.gettempdir()) / f"escrowmq-test-databases-{os.geteuid()}"
    cache.mkdir(mode=0o755, exist_ok=True)
    if cache.stat().st_uid != os.geteuid():
        raise NoServer(f"{cache} belongs to somebody else: remove it")
    with (cache / "lock").open("w") as lock:  # workers of one run share it
        fcntl.flock(lock, fcntl.LOCK_EX)
        tree = cache / kind
        if not tree.exists():
            _unpack(kind, cache, tree)
    if next(tree.glob(PROGRAM[kind]), None) is None:
        raise NoServer(
            f"{kind}: {tree} has no {PROGRAM[kind]}; remove it and try again, or install the server"
        )
    return tree


def _unpack(kind: str, cache: Path, tree: Path) -> None:
    missing = [tool for tool in ("apt-get", "dpkg") if shutil.which(tool) is None]
    if missing:
        raise NoServer(
            f"{kind} is not installed here, and without {missing} it cannot be unpacked: install it"
        )
    half = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=cache))
    half.chmod(0o755)
    if not _download(PACKAGES[kind], half, ()):
        # No lists of packages, or old ones. With folders of its own apt-get needs no root rights for new
        # ones.
        own = cache / "apt"
        for folder in ("lists/partial", "cache/archives/partial"):
            (own / folder).mkdir(parents=True, exist_ok=True)
        options = (
            f"-oDir::State::lists={own}/lists",
            f"-oDir::Cache={own}/cache",
            "-oAPT::Sandbox::User=root",
        )
        updated = _apt(("update", *options), half)
        if updated.returncode != 0 or not _download(PACKAGES[kind], half, options):
            raise NoServer(
                f"{kind} is not installed here, and its packages {PACKAGES[kind]} cannot be had: "
                f"{updated.stdout[-500:]} {updated.stderr[-500:]}"
            )
    for package in sorted(half.glob("*.deb")):
        subprocess.run(["dpkg", "-x", package, half], check=True, timeout=DOWNLOAD_S)
        package.unlink()
    half.rename(tree)


def _apt(arguments: tuple[str, ...], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["apt-get", "-q", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DOWNLOAD_S,
        check=False,
    )


def _download(packages: tuple[str, ...], folder: Path, options: tuple[str, ...]) -> bool:
    return _apt((*options, "download", *packages), folder).returncode == 0


def free_port() -> int:
    """One that nobody has now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


class Server:
    """One server; ``kill`` and ``start`` as often as a test likes. Its files go with ``close``."""

    def __init__(self, kind: str, *, durable: bool = False) -> None:
        """``durable``: PostgreSQL with its own defaults, which sync at each commit; for measurements."""
        self.kind, self.tree, self.port = kind, programs(kind), free_port()
        self.durable = durable
        self.password = secrets.token_hex(8)
        self.folder = Path(tempfile.mkdtemp(prefix=f"escrowmq-{kind}-"))
        self.log: IO[bytes] = (self.folder / "log").open("wb")
        self._process: subprocess.Popen[bytes] | None = None
        self._user = _unprivileged()
        if self._user:
            os.chown(self.folder, self._user["user"], self._user["group"])
        self.folder.chmod(0o755)

    # ------------------------------------------------------------ addresses

    def url(self, driver: str = "") -> str:
        """For SQLAlchemy; ``driver``: another one than psycopg or PyMySQL."""
        if self.kind == "postgresql":
            return f"postgresql+{driver or 'psycopg'}://escrow:{self.password}@127.0.0.1:{self.port}/postgres"
        return f"mysql+{driver or 'pymysql'}://escrow@127.0.0.1:{self.port}/shop"

    def connect(self, **options: Any) -> Any:
        """A plain connection."""
        if self.kind == "postgresql":
            import psycopg

            return psycopg.connect(
                host="127.0.0.1", port=self.port, user="escrow", password=self.password, dbname="postgres",
                **options,
            )  # fmt: skip
        import pymysql

        return pymysql.connect(host="127.0.0.1", port=self.port, user="escrow", database="shop", **options)

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Until it answers; raises NoServer with the end of its log."""
        if not (self.folder / "data").exists():
            self._make()
        self._process = self._spawn(*self._command())
        deadline = time.monotonic() + START_S
        while True:
            try:
                self._connect_bare().close()
                return
            except Exception as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.kill()
                    raise NoServer(f"{self.kind} does not start ({error}): {self._said()}") from error
                time.sleep(0.02)

    def copy(self, primary: Server) -> None:
        """Before the first start: take over the data of another PostgreSQL, and follow it as a standby."""
        self.password = primary.password
        source = f"host=127.0.0.1 port={primary.port} user=escrow password={primary.password}"
        made = self._spawn(
            self._bin("pg_basebackup"), "-d", source, "-D", f"{self.folder}/data", "-R", "-X", "stream",
            "-c", "fast", "--no-sync",
        )  # fmt: skip
        if made.wait(timeout=START_S) != 0:
            raise NoServer(f"pg_basebackup fails: {self._said()}")

    def commits_waiting(self) -> int:
        """Those of PostgreSQL that wait for a synchronous standby."""
        with self.connect() as db:
            found = db.execute(
                "select count(*) from pg_stat_activity where wait_event = 'SyncRep'"
            ).fetchone()
        count: int = found[0]
        return count

    def kill(self) -> None:
        """As a machine that loses its power, except that the page cache stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=30)
            self._process = None
            if self.kind == "postgresql":
                self._await_children()

    def kill_postmaster(self, *, keeps_pid_file: bool) -> None:
        """PostgreSQL's first process dies alone; the others end by themselves, each when it notices. With the
        pid file the next one refuses to start until they have. Without it nothing keeps it from that, and two
        servers may write the same files: PostgreSQL's manual warns of it."""
        assert self.kind == "postgresql" and self._process is not None
        self._process.kill()
        self._process.wait(timeout=30)
        self._process = None
        if not keeps_pid_file:
            (self.folder / "data/postmaster.pid").unlink()

    def restart(self) -> None:
        """Start it as often as it refuses because of processes of an earlier one."""
        deadline = time.monotonic() + START_S
        while True:
            try:
                self.start()
                return
            except NoServer:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def processes(self) -> list[int]:
        """PostgreSQL's, without the first one."""
        first = self._process.pid if self._process is not None else -1
        return [pid for pid in self._in_data() if pid != first]

    def _in_data(self) -> Iterator[int]:
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(entry / "cwd") == f"{self.folder}/data":
                    yield int(entry.name)

    def close(self) -> None:
        """Kill it, and remove its files."""
        self.kill()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _await_children(self) -> None:
        """PostgreSQL's backends end by themselves once their postmaster has gone; until then they hold its
        memory."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if not any(self._in_data()):
                return
            time.sleep(0.01)
        raise NoServer("backends of a killed PostgreSQL do not end")

    def _make(self) -> None:
        if self.kind == "mariadb":
            (self.folder / "data").mkdir()
            if self._user:
                os.chown(self.folder / "data", self._user["user"], self._user["group"])
            return
        secret = self.folder / "password"
        secret.write_text(self.password)
        if self._user:
            os.chown(secret, self._user["user"], self._user["group"])
        made = self._spawn(
            self._bin("initdb"), "-D", f"{self.folder}/data", "-U", "escrow", "-A", "scram-sha-256",
            f"--pwfile={secret}", "--no-sync", "-E", "UTF8", "--locale=C", "--no-instructions",
        )  # fmt: skip
        if made.wait(timeout=START_S) != 0:
            raise NoServer(f"initdb fails: {self._said()}")

    def _command(self) -> tuple[str, ...]:
        data = f"{self.folder}/data"
        if self.kind == "postgresql":
            # fsync off: a killed process loses nothing that it wrote; the machine stays up.
            quick = ("fsync=off", "shared_buffers=8MB", "autovacuum=off", "jit=off", "deadlock_timeout=200ms")
            options = (
                f"port={self.port}", "listen_addresses=127.0.0.1", "unix_socket_directories=",
                "max_connections=40", "max_prepared_transactions=0", *(() if self.durable else quick),
            )  # fmt: skip
            return (self._bin("postgres"), "-D", data, *(part for text in options for part in ("-c", text)))
        share = self.tree / "usr/share/mysql"
        # Without accounts the system tables are not needed, which would take as long to make as all the rest.
        return (
            str(self.tree / PROGRAM["mariadb"]), "--no-defaults", f"--datadir={data}", "--skip-grant-tables",
            "--bind-address=127.0.0.1", f"--port={self.port}", f"--socket={self.folder}/socket",
            f"--pid-file={self.folder}/pid", f"--lc-messages-dir={share}", "--innodb-buffer-pool-size=8M",
            f"--character-sets-dir={share}/charsets", "--innodb-log-file-size=8M", "--skip-log-bin",
            "--innodb-data-file-path=ibdata1:4M:autoextend", "--innodb-flush-log-at-trx-commit=2",
            "--innodb-use-native-aio=0", "--max-connections=40", "--performance-schema=off",
            "--loose-skip-name-resolve",
        )  # fmt: skip

    def _connect_bare(self) -> Any:
        if self.kind == "postgresql":
            return self.connect(connect_timeout=5)
        import pymysql

        connection = pymysql.connect(
            host="127.0.0.1", port=self.port, user="escrow", connect_timeout=5, autocommit=True
        )
        with connection.cursor() as cursor:
            cursor.execute("create database if not exists shop character set latin1")  # a fence must not mind
        return connection

    def _bin(self, name: str) -> str:
        return str(sorted(self.tree.glob(PROGRAM["postgresql"]))[-1].with_name(name))

    def _spawn(self, *command: str) -> subprocess.Popen[bytes]:
        environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"}
        if self.tree != Path("/"):
            folders = [*self.tree.glob("usr/lib/*-linux-gnu*"), *self.tree.glob("lib/*-linux-gnu*")]
            environment["LD_LIBRARY_PATH"] = ":".join(map(str, folders))
        return subprocess.Popen(
            command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=self.log,
            stderr=self.log, preexec_fn=_dies_with_the_tests, **self._user,
        )  # fmt: skip

    def _said(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-1500:]


@contextlib.contextmanager
def running(kind: str, *, durable: bool = False) -> Iterator[Server]:
    """A server that answers, for as long as the block lasts."""
    server = Server(kind, durable=durable)
    try:
        server.start()
        yield server
    finally:
        server.close()
