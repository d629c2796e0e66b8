"""Spark runs this in place of Python. It asks the zygote for a process, and ends when that process ends.

    python -IS launcher.py PYTHON SOCKET SECONDS -m MODULE [ARGUMENT …]

A zygote that does not answer for SECONDS is taken to hang. A child that it forked later would find no launcher.

It imports as little as possible, since it is started for each of Spark's Python processes: `socket` alone, with its
enumerations, costs as much as the rest of the process. See `zygote.py`.
"""

import os
import sys
from _socket import AF_UNIX, SCM_RIGHTS, SOCK_STREAM, SOL_SOCKET, socket

#: A variable with folders that Python looks into after its own, as `sys.path` of the user's module has them.
APPENDED_PATH = "SAMZA_AZURE_APPENDED_PATH"


def main() -> None:
    """Exit with the code of the requested process."""
    python, address, patience, *arguments = sys.argv[1:]
    if arguments[:1] == ["-m"]:
        code = ask(address, arguments, float(patience))
        if code is not None:
            sys.exit(code)
    if folders := os.environ.get(APPENDED_PATH):  # Python itself looks there before its own
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), folders]))
    os.execv(python, [python, *arguments])  # noqa: S606  # Spark expects this process id


def ask(address: str, arguments: list[str], patience: float) -> int | None:
    """The process's exit code. None if the zygote is gone or does not answer, so that nothing was started."""
    # The child has the other end of the pipe, and the kernel kills it when ours closes. The connection cannot say so:
    # the signal of the request's last bytes may come after the child has read them and asked for signals.
    watched, held = os.pipe()
    connection = socket(AF_UNIX, SOCK_STREAM)
    connection.settimeout(patience)
    why = "it closed the connection"
    try:
        _request(connection, address, arguments, watched)
        begun = connection.recv(1)
    except OSError as error:
        begun, why = b"", str(error)
    os.close(watched)
    if not begun:
        os.close(held)
        connection.close()
        _say(f"The zygote gave no process for {arguments[1]} ({why}). This one starts by itself.\n")
        return None
    connection.settimeout(None)
    answer = connection.recv(1)
    return answer[0] if answer else 1


def _say(text: str) -> None:
    try:  # noqa: SIM105  # contextlib takes time to import
        os.write(2, text.encode())
    except OSError:
        pass  # nobody reads it


def _request(connection: socket, address: str, arguments: list[str], watched: int) -> None:
    folder, name = os.path.split(address)
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    connection.connect(f"/proc/self/fd/{directory}/{name}")
    environment = [name + b"=" + value for name, value in os.environb.items()]
    working = os.getcwdb()  # noqa: PTH109  # pathlib takes 10 ms to import
    files = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2, watched))
    connection.sendmsg([b"\0"], [(SOL_SOCKET, SCM_RIGHTS, files)])
    for strings in ([os.fsencode(each) for each in arguments], environment, [working]):
        data = b"".join(each + b"\0" for each in strings)
        connection.sendall(b"%d\n%s" % (len(data), data))


if __name__ == "__main__":
    main()
