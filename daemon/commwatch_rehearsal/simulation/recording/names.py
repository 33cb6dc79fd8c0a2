"""Replaces what names a machine or a person, one to one: the same name by the same replacement, of the same form."""

from __future__ import annotations

import hashlib
import re
import secrets
import socket
import threading
from collections.abc import Callable
from typing import Final

from commwatch.sources.services import SERVICE_COMMANDS

_HEX: Final = "0123456789abcdef"
_WORD: Final = "abcdefghijklmnopqrstuvwxyz"
_SAME: Final = ":.-_/ "
_NO_NAME: Final = frozenset("0fF:-. x")
"""Of these alone is what stands for no address, or for all."""
_MOST_LID: Final = 0xBFFF
_COMM_BYTES: Final = 15

_EDGE, _END = r"(?<![\w:.-])", r"(?![\w:.-])"
_GID: Final = re.compile(
    rf"{_EDGE}([0-9a-f]{{4}}(?::[0-9a-f]{{4}}){{3}}):([0-9a-f]{{4}}(?::[0-9a-f]{{4}}){{3}}){_END}", re.I
)
_UUID: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f])", re.I)
_GUID: Final = re.compile(rf"{_EDGE}[0-9a-f]{{4}}(?::[0-9a-f]{{4}}){{3}}{_END}", re.I)
_GUID_NUMBER: Final = re.compile(r"(?<![0-9a-z])0x([0-9a-f]{16})(?![0-9a-z])", re.I)
_MAC: Final = re.compile(r"(?<![\w:-])[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5,19}(?![\w:-])", re.I)
_IPV4: Final = re.compile(r"(?<![\w.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w.])")
_IPV6: Final = re.compile(r"(?<![\w:])(?=[0-9a-f:]*::)(?:[0-9a-f]{1,4}:|:){2,7}[0-9a-f]{0,4}(?![\w:])", re.I)
_AT: Final = re.compile(r"[A-Za-z0-9_.+-]+@[A-Za-z0-9_.-]+")
_HOME: Final = re.compile(r"(/home/|/Users/|/root/)([^/\s\0]+)")
_PROCESS: Final = re.compile(r"(\bname=)(?!<unknown>|'<unknown>')((?:(?!, )[^\n])+)")
_SERIAL: Final = re.compile(r"(\bserial(?: number)?[:= ]+)([A-Za-z0-9]{6,})", re.I)
_IPV4_IN_GID: Final = "0000:0000:0000:0000:0000:ffff:"
_WORDS_OF_GID: Final = ("fe80:0000:0000:0000", "0000:0000:0000:0000")


class Names:
    """The replacements of one recording; the key that they are made with is kept nowhere.

    Args:
        keep: replace nothing.
    """

    def __init__(self, keep: bool = False) -> None:
        self.keep = keep
        self._key = secrets.token_bytes(32)
        self._known: dict[tuple[str, str], str] = {}
        self._taken: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        host = socket.gethostname()
        names = {host, host.partition(".")[0]} - {"", "localhost"}
        self._host = re.compile(
            rf"(?<![\w-])(?:{'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})(?![\w-])"
        )
        if not names:
            self._host = re.compile(r"(?!)")

    def text(self, text: str) -> str:
        """A text with everything replaced that has the form of an address or an identity, or is this host's name."""
        if self.keep or len(text) < 4:
            return text
        text = _UUID.sub(lambda found: self._alike("uuid", found[0]), text)
        if ":" in text:
            text = _GID.sub(self._gid, text)
            text = _GUID.sub(lambda found: self._guid(found[0]), text)
            text = _MAC.sub(lambda found: self._mac(found[0]), text)
            text = _IPV6.sub(lambda found: self._alike("ipv6", found[0]), text)
        if "0x" in text:
            text = _GUID_NUMBER.sub(lambda found: "0x" + self._guid(found[1]), text)
        if "." in text:
            text = _IPV4.sub(lambda found: self._ipv4(found[0]), text)
        if "@" in text:
            text = _AT.sub("user@host", text)
        if "/" in text:
            text = _HOME.sub(lambda found: found[1] + self._word("user", found[2], 8), text)
        if "erial" in text:
            text = _SERIAL.sub(lambda found: found[1] + self.identity(found[2]), text)
        if "name=" in text:
            text = _PROCESS.sub(lambda found: found[1] + self.process(found[2]), text)
        return self._host.sub(lambda found: self._word("host", found[0], 8), text)

    def identity(self, text: str) -> str:
        """A serial number or another text that is an identity as a whole."""
        return text if self.keep else self._alike("identity", text)

    def raw(self, data: bytes) -> bytes:
        """The bytes of an identity."""
        return data if self.keep or not any(data) else bytes.fromhex(self._alike("uuid", data.hex()))

    def process(self, name: str) -> str:
        """The name of a process; those of the driver's own services are kept."""
        if self.keep or name in SERVICE_COMMANDS or name == "kthreadd":
            return name
        return self._word("process", name, _COMM_BYTES - 1)

    def file(self, root: str, path: str, content: str) -> str:
        """The content of a file, by what the file is."""
        if self.keep:
            return content
        name = path.rpartition("/")[2]
        if root == "proc" and name in {"comm", "cmdline"} and path[:1].isdecimal():
            return self._of_process(name, content)
        if rule := _BY_FILE.get(name):
            body = content.rstrip("\n")
            return rule(self, body) + content[len(body) :]
        return self.text(content)

    def _of_process(self, name: str, content: str) -> str:
        if name == "comm":
            body = content.rstrip("\n")
            return self.process(body) + content[len(body) :]
        # Of a command line the reader uses the name of the program; the rest may be anything.
        program = content.partition("\0")[0].rpartition("/")[2]
        return f"{self.process(program)}\0" if program else ""

    def _lid(self, text: str) -> str:
        try:
            number = int(text, 0)
        except ValueError:
            return self._alike("identity", text)
        if not 0 < number <= _MOST_LID:
            return text
        known = self._known.get(("lid", str(number)))
        if known is None:
            known = self._made("lid", str(number), lambda draw: str(1 + int(draw(8, _HEX), 16) % _MOST_LID))
        return f"{int(known):#0{len(text)}x}" if text[:2].lower() == "0x" else known

    def _description(self, text: str) -> str:
        return self._word("host", text, 8)

    def _gid(self, found: re.Match[str]) -> str:
        whole = found[0].lower()
        if set(whole) <= _NO_NAME or whole.endswith(":0000:0000:0000:0000"):
            return found[0]
        if whole.startswith(_IPV4_IN_GID):
            number = whole[len(_IPV4_IN_GID) :].replace(":", "")
            parts = self._ipv4(".".join(str(byte) for byte in bytes.fromhex(number))).split(".")
            number = bytes(map(int, parts)).hex()
            return f"{_IPV4_IN_GID}{number[:4]}:{number[4:]}"
        prefix, port = found[1], found[2]
        if prefix.lower() not in _WORDS_OF_GID:
            prefix = self._alike("prefix", prefix)
        return f"{prefix}:{self._guid(port)}"

    def _guid(self, text: str) -> str:
        """With or without colons it is the same one."""
        bare = self._alike("guid", text.replace(":", ""))
        return bare if ":" not in text else ":".join(bare[place : place + 4] for place in range(0, len(bare), 4))

    def _mac(self, text: str) -> str:
        if set(text) <= _NO_NAME:
            return text
        # Locally administered, and no group: valid on any interface.
        return self._cased(text, self._made("mac", text.lower(), lambda draw: "02" + _shaped(text.lower(), draw)[2:]))

    def _ipv4(self, text: str) -> str:
        if text.startswith(("127.", "0.")) or text == "255.255.255.255":
            return text

        def make(draw: Callable[[int, str], str]) -> str:
            number = int(draw(6, _HEX), 16)
            return f"10.{number >> 16}.{number >> 8 & 255}.{1 + (number & 255) % 254}"

        return self._made("ipv4", text, make)

    def _alike(self, kind: str, text: str) -> str:
        """Each digit by a digit, each letter by a letter, everything else as it is."""
        if not text or set(text) <= _NO_NAME:
            return text
        if kind == "identity":
            return self._made(kind, text, lambda draw: _shaped(text, draw, hexadecimal=False))
        return self._cased(text, self._made(kind, text.lower(), lambda draw: _shaped(text.lower(), draw)))

    @staticmethod
    def _cased(text: str, new: str) -> str:
        return new.upper() if text == text.upper() else new

    def _word(self, kind: str, text: str, length: int) -> str:
        return self._made(kind, text, lambda draw: f"{kind}-{draw(max(length - len(kind) - 1, 4), _WORD)}")

    def _made(self, kind: str, text: str, make: Callable[[Callable[[int, str], str]], str]) -> str:
        with self._lock:  # two readers that meet a name at once give it one replacement
            known = self._known.get((kind, text))
            return self._new(kind, text, make) if known is None else known

    def _new(self, kind: str, text: str, make: Callable[[Callable[[int, str], str]], str]) -> str:
        for attempt in range(1000):

            def draw(count: int, letters: str, attempt: int = attempt) -> str:
                seed = f"{attempt}\0{kind}\0{text.lower()}".encode("utf-8", "surrogatepass")
                stream = hashlib.shake_256(self._key + seed).digest(2 * count)
                numbers = (int.from_bytes(stream[2 * place : 2 * place + 2], "big") for place in range(count))
                return "".join(letters[number % len(letters)] for number in numbers)

            new = make(draw)
            if new != text and (kind, new) not in self._taken:
                break
        self._taken.add((kind, new))
        self._known[(kind, text)] = new
        return new


def _shaped(text: str, draw: Callable[[int, str], str], *, hexadecimal: bool = True) -> str:
    drawn = iter(draw(len(text), _HEX if hexadecimal else "0123456789"))
    letters = iter(draw(len(text), _WORD))
    shaped = []
    for character in text:
        digit, letter = next(drawn), next(letters)
        if character.isdigit() or (hexadecimal and character.lower() in _HEX):
            shaped.append(digit.upper() if character.isupper() else digit)
        elif character in _SAME or not character.isalpha():
            shaped.append(character)
        else:
            shaped.append(letter.upper() if character.isupper() else letter)
    return "".join(shaped)


_BY_FILE: Final[dict[str, Callable[[Names, str], str]]] = {
    "lid": Names._lid,
    "sm_lid": Names._lid,
    "node_desc": Names._description,
    "serial": Names.identity,
    "serial_number": Names.identity,
    "phys_port_id": Names.identity,
    "phys_switch_id": Names.identity,
    "ifalias": Names._description,
}
"""By the name of a file what its content is."""
